// The list of agents: searched, filtered and only as long as it is looked at.
const PAGE = 100, MOST = 20000, STATES = ["running", "asking", "idle", "asleep", "failed"];
const agents = new Map(), rows = new Map();
let isLoaded = false, order = null, shown = PAGE, wanted = "", words = [], due = 0, chosen = null;

function put(info) {
  const known = agents.get(info.id);
  if (!known || known.created !== info.created) order = null;
  agents.set(info.id, info);
  drawSoon();
}

function drop(id) {
  if (agents.delete(id)) order = null;
  if (id === chosen) write($("said"), "This agent was disposed of; its session is kept.");
  drawSoon();
}

async function loadAgents() {
  const found = new Map();
  // Those at work first: of very many that sleep, some may be left out.
  for (const state of ["running", "failed", "idle", "asleep"]) await loadState(state, found);
  agents.clear();
  for (const [id, info] of found) agents.set(id, info);
  order = null;
  isLoaded = true;
  drawSoon();
}

async function loadState(state, found) {
  let after = "";
  do {
    const page = await call("GET", `/v1/agents?state=${state}&limit=500${after}`);
    for (const info of page.agents) found.set(info.id, info);
    after = page.next ? `&after=${encodeURIComponent(page.next)}` : "";
  } while (after && found.size < MOST);
}

function matches(info) {
  if (wanted && stateOf(info) !== wanted) return false;
  if (!words.length) return true;
  const text = `${info.title || ""}\n${info.id}\n${info.cwd || ""}\n${info.model || ""}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function drawSoon() {
  if (!due) due = setTimeout(draw, agents.size > 2000 ? 300 : 60);
}

function draw() {
  clearTimeout(due);
  due = 0;
  if (order === null) {
    order = [...agents.values()].sort((a, b) => b.created - a.created || (a.id < b.id ? 1 : -1)).map((info) => info.id);
  }
  const counts = {}, found = [];
  let total = 0;
  for (const id of order) {
    const info = agents.get(id);
    counts[stateOf(info)] = (counts[stateOf(info)] || 0) + 1;
    if (!matches(info)) continue;
    total += 1;
    if (found.length < shown) found.push(info);
  }
  drawStates(counts);
  drawRows(found);
  const all = agents.size >= MOST ? `the first ${agents.size.toLocaleString("en")}` : agents.size.toLocaleString("en");
  const none = isLoaded ? "No agents yet: dsh agent create" : "";
  write($("count"), agents.size ? `${total.toLocaleString("en")} of ${all} agents` : none);
  $("more").hidden = total <= shown;
  const info = agents.get(chosen);
  if (info) showFacts(info);
}

function drawRows(found) {
  const list = $("list"), keep = new Set(found.map((info) => info.id));
  for (const [id, row] of rows) {
    if (keep.has(id)) continue;
    row.item.remove();
    rows.delete(id);
  }
  let place = list.firstChild;
  for (const info of found) {
    const row = rows.get(info.id) || newRow(info.id);
    fill(row, info);
    place = inPlace(list, row.item, place);
  }
}

function newRow(id) {
  const row = { link: make("a"), chip: make("span", "chip"), title: make("b"), id: make("small") };
  for (const name of ["doing", "tokens", "cost", "age"]) row[name] = make("span", name);
  row.link.href = `#agent=${encodeURIComponent(id)}`;
  row.link.append(row.chip, make("span", "label", row.title, row.id), row.doing, row.tokens, row.cost, row.age);
  row.item = make("li", "", row.link);
  rows.set(id, row);
  return row;
}

function fill(row, info) {
  if (row.info !== info) {
    row.info = info;
    const state = stateOf(info);
    row.chip.className = `chip ${STATES.includes(state) ? state : ""}`;
    write(row.chip, state);
    write(row.title, titleOf(info));
    write(row.id, info.id);
    write(row.doing, doingOf(info));
    write(row.tokens, shortCount(info.tokens));
    write(row.cost, costOf(info));
    row.link.title = visible(`${titleOf(info)}\n${info.cwd || ""}\n${info.model || ""}`);
  }
  write(row.age, span(Date.now() - info.created));
  if (info.id === chosen) row.link.setAttribute("aria-current", "true");
  else row.link.removeAttribute("aria-current");
}

function drawStates(counts) {
  for (const button of $("states").children) {
    const state = button.value;
    const count = state ? counts[state] || 0 : agents.size;
    write(button, `${state || "all"} ${count.toLocaleString("en")}`);
    button.setAttribute("aria-pressed", String(wanted === state));
    button.hidden = state !== "" && !count && wanted !== state;
  }
}

function prepareList() {
  for (const state of ["", ...STATES]) {
    const button = make("button");
    button.type = "button";
    button.value = state;
    button.addEventListener("click", () => {
      wanted = wanted === state ? "" : state;
      shown = PAGE;
      draw();
    });
    $("states").append(button);
  }
  $("query").addEventListener("input", () => {
    words = $("query").value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = PAGE;
    drawSoon();
  });
  $("more").addEventListener("click", () => {
    shown += PAGE;
    draw();
  });
  setInterval(() => {
    for (const row of rows.values()) write(row.age, span(Date.now() - row.info.created));
  }, 1000);
}
