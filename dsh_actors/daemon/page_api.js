// What the page asks of the daemon: calls, and event streams that go on after an interruption.
const $ = (id) => document.getElementById(id);
const KEY = "dsh-token";

class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function keepToken() {
  // The token comes behind the #, which no server gets to see, and does not stay in the address.
  if (!location.hash.startsWith("#token=")) return;
  sessionStorage.setItem(KEY, decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", location.pathname);
}

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options });
  if (answer.ok) return answer;
  let told = {};
  try {
    told = (await answer.json()).error || {};
  } catch { /* not the daemon's own words */ }
  const message = told.message || `the daemon answered ${answer.status}`;
  throw new Refused(answer.status, told.code || "", told.hint ? `${message}; ${told.hint}` : message);
}

async function call(method, path, body) {
  const options = { method, headers: headers({ Accept: "application/json" }) };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const text = await (await ask(path, options)).text();
  return text ? JSON.parse(text) : {};
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Gives on.event(name, data) every event, and on.state one of open, lost, gone, refused (with the error).
async function follow(path, on, stopped) {
  let last = null, wait = 250;
  while (!stopped.aborted) {
    try {
      const more = { Accept: "text/event-stream" };
      if (last !== null) more["Last-Event-ID"] = last;
      const answer = await ask(path, { headers: headers(more), signal: stopped });
      on.state("open");
      await readEvents(answer.body, (name, data, id) => {
        wait = 250;
        if (id !== null) last = id;
        on.event(name, data);
      });
    } catch (error) {
      if (stopped.aborted) return;
      if (error instanceof Refused && (error.status === 401 || error.status === 404)) {
        on.state(error.status === 401 ? "refused" : "gone", error);
        return;
      }
    }
    if (stopped.aborted) return;
    on.state("lost");
    await pause(wait);
    wait = Math.min(wait * 2, 3000);
  }
}

async function readEvents(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", name = "message", data = [], id = null;
  const line = (text) => {
    if (text === "") {
      if (data.length) take(name, JSON.parse(data.join("\n")), id);
      name = "message";
      data = [];
      id = null;
      return;
    }
    const at = text.indexOf(":");
    const field = at < 0 ? text : text.slice(0, at);
    const value = at < 0 ? "" : text.slice(at + 1).replace(/^ /, "");
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
    else if (field === "id") id = value;
  };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    // The daemon ends lines with a line feed alone.
    const lines = held.split("\n");
    held = lines.pop();
    lines.forEach(line);
  }
}

// Nothing that came from an agent is ever markup: elements are made here, and their text is text.
// Controls, and what turns the direction of writing around, would show another text than there is.
const UNSEEN = /\r(?!\n)|[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g;
const visible = (text) => String(text ?? "").replace(UNSEEN, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);

function make(tag, name, ...inside) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  const given = inside.filter((each) => each !== null && each !== undefined);
  element.append(...given.map((each) => (each instanceof Node ? each : visible(each))));
  return element;
}

function write(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

// Puts an element before `place` unless it stands there: moved, it would lose the focus. The place behind it.
function inPlace(list, element, place) {
  if (element === place) return place.nextSibling;
  list.insertBefore(element, place);
  return place;
}

function shortCount(value) {
  if (!value) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(1)}${unit}`;
  }
  return String(value);
}

const costOf = (info) => (typeof info.cost === "number" ? `${info.cost.toFixed(4)} ${info.currency || ""}`.trim() : "–");

function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  }
  return `${seconds}s`;
}

const stateOf = (info) => (info.approvals ? "asking" : info.state);
const doingOf = (info) => {
  if (info.state !== "running") return "";
  const more = info.work && info.work.length ? ` +${info.work.length}` : "";
  const doing = info.step === null ? `${info.turn} waiting` : `${info.turn}.${info.step} ${info.tool || "model"}`;
  return doing + more;
};
const titleOf = (info) => info.title || info.id;
const pathOf = (id, ...rest) => ["/v1/agents", encodeURIComponent(id), ...rest].join("/");
