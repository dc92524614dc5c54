// Questions of agents that wait for a decision.
const MANY = 20;
const questions = new Map(), cards = new Map();

async function loadQuestions() {
  const open = (await call("GET", "/v1/approvals")).approvals;
  questions.clear();
  for (const each of open) questions.set(each.id, each);
  drawQuestions();
}

function drawQuestions() {
  // Those of the agent that is looked at come first.
  const all = [...questions.values()].sort((a, b) => Number(b.agent === chosen) - Number(a.agent === chosen));
  const found = all.slice(0, MANY), keep = new Set(found.map((each) => each.id));
  for (const [id, card] of cards) {
    if (keep.has(id)) continue;
    const held = card.contains(document.activeElement);
    card.remove();
    cards.delete(id);
    if (held) $(questions.size ? "questions-title" : "query").focus();
  }
  let place = $("question-list").firstChild;
  for (const each of found) {
    const card = cards.get(each.id) || newCard(each);
    const info = agents.get(each.agent);
    write(card.querySelector("a"), info ? titleOf(info) : each.agent);
    place = inPlace($("question-list"), card, place);
  }
  $("questions").hidden = !all.length && !$("question-note").textContent;
  const rest = all.length > MANY ? `; the first ${MANY} of them:` : "";
  write($("questions-title"), all.length === 1 ? "1 call waits for a decision" : `${all.length} calls wait for a decision${rest}`);
}

function newCard(question) {
  const link = make("a");
  link.href = `#agent=${encodeURIComponent(question.agent)}`;
  const until = make("span", "soft until");
  const what = make("div", "what", make("span", "name", question.tool), link, make("span", "soft", question.reason || ""), until);
  const shownArguments = make("pre", "", textOf(question.arguments));
  shownArguments.tabIndex = 0;
  const buttons = make("div", "row", decision(question, "allow", "Allow", "primary"), decision(question, "deny", "Deny", "danger"));
  const card = make("li", "question", what, shownArguments, buttons);
  card.dataset.deadline = question.deadline || "";
  cards.set(question.id, card);
  tick(card);
  return card;
}

function textOf(value) {
  if (typeof value === "string") return value;
  const entries = value && typeof value === "object" ? Object.entries(value) : [];
  return entries.map(([key, each]) => `${key}: ${typeof each === "string" ? each : JSON.stringify(each)}`).join("\n");
}

function decision(question, word, label, name) {
  const button = make("button", name, label);
  button.type = "button";
  button.addEventListener("click", async () => {
    const both = button.parentNode.querySelectorAll("button");
    const enable = (is) => both.forEach((each) => { each.disabled = !is; });
    enable(false);
    write($("question-note"), "");
    try {
      await call("POST", `/v1/approvals/${encodeURIComponent(question.id)}`, { decision: word });
      questions.delete(question.id);
    } catch (error) {
      if (error instanceof Refused && error.status === 404) questions.delete(question.id);
      else enable(true);
      write($("question-note"), `${question.tool}: ${error.message}`);
    }
    drawQuestions();
  });
  return button;
}

function tick(card) {
  const left = Number(card.dataset.deadline) - Date.now();
  write(card.querySelector(".until"), card.dataset.deadline ? `denied in ${span(left)}` : "");
}

function prepareQuestions() {
  setInterval(() => cards.forEach(tick), 1000);
}
