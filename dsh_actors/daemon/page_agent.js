// One agent: what is known of it, its events as they come, and what can be said to it.
const MAX_UNITS = 600, MAX_TEXT = 20000;
let watching = null, view = null;

function showFacts(info) {
  write($("title"), titleOf(info));
  document.title = `${visible(titleOf(info))} · dsh`;
  const facts = [
    ["state", make("span", `chip ${stateOf(info)}`, stateOf(info))],
    ["doing", doingOf(info)],
    ...(info.work || []).map((each) => ["at work", `${each.kind}: ${each.label || each.id}`]),
    ["tokens", shortCount(info.tokens)],
    ["cost", costOf(info)],
    ["age", span(Date.now() - info.created)],
    ["queued", info.next_turn || info.next_step ? `${info.next_turn || 0} for a turn, ${info.next_step || 0} for a step` : ""],
    ["model", info.model],
    ["in", info.cwd],
    ["id", info.id],
    ["parent", info.parent && info.parent !== info.id ? linkTo(info.parent) : ""],
    ["error", info.error],
  ];
  const list = make("dl", "facts");
  for (const [name, value] of facts) {
    const isLong = typeof value === "string" && value.length > 14;
    if (value) list.append(make("div", isLong ? "long" : "", make("dt", "", name), make("dd", "", value)));
  }
  // A link that has the focus keeps it.
  if (!$("facts").contains(document.activeElement)) $("facts").replaceChildren(list);
  $("cancel").disabled = info.state !== "running";
}

function linkTo(id) {
  const link = make("a", "", id);
  link.href = `#agent=${encodeURIComponent(id)}`;
  return link;
}

function openAgent(id) {
  closeAgent();
  chosen = id;
  document.body.classList.toggle("with-agent", id !== null);
  $("agent").hidden = id === null;
  document.title = "dsh agents";
  draw();
  drawQuestions();
  if (id === null) return;
  write($("said"), "");
  const info = agents.get(id);
  if (info) showFacts(info);
  else {
    write($("title"), id);
    $("facts").replaceChildren();
    call("GET", pathOf(id)).then(put, (error) => write($("said"), error.message));
  }
  scrollTo(0, 0);
  $("title").focus({ preventScroll: true });
  watching = new AbortController();
  view = new StreamView($("stream"));
  const mine = view;
  follow(pathOf(id, "events"), {
    event: (name, data) => mine.take(name, data),
    state: (state, error) => write($("streaming"), { open: "live", lost: "interrupted, trying again…", gone: "over" }[state] || error.message),
  }, watching.signal);
}

function closeAgent() {
  if (watching) watching.abort();
  watching = view = null;
  chosen = null;
}

class StreamView {
  constructor(root) {
    this.root = root;
    this.calls = new Map();
    this.live = null;
    this.dropped = null;
    root.replaceChildren();
  }

  take(name, event) {
    const atEnd = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < 60;
    const show = this[VIEWS[name]];
    if (show) show.call(this, event.data || event, event);
    while (this.root.childElementCount > MAX_UNITS) this.forget();
    if ($("follow").checked && atEnd) this.root.scrollTop = this.root.scrollHeight;
  }

  forget() {
    if (!this.dropped) {
      this.dropped = make("p", "note", "Earlier events are not shown here; dsh agent events has all of them.");
      this.root.prepend(this.dropped);
    }
    const oldest = this.dropped.nextElementSibling;
    for (const [id, call] of this.calls) if (call.box === oldest) this.calls.delete(id);
    oldest.remove();
  }

  add(element) {
    this.root.append(element);
    return element;
  }

  note(text, name) {
    this.add(make("p", name ? `banner ${name}` : "note", text));
  }

  turnStart(data, event) {
    const time = event.time ? ` · ${new Date(event.time).toLocaleTimeString()}` : "";
    this.add(make("div", "turnhead", `Turn ${data.turn}`, make("span", "soft", time)));
  }

  turnEnd(data) {
    const reason = data.reason || {};
    this.endLive();
    if (reason.kind === "completed") this.note(`Turn ${data.turn} is complete`, "ok");
    else this.note(`Turn ${data.turn} ended: ${whyEnded(reason)}`, reason.kind === "error" ? "bad" : "warn");
  }

  stepStart(data) {
    this.add(make("div", "stephead", `Step ${data.step}`));
  }

  user(data) {
    const text = textIn(data.content), kind = (data.source || {}).kind;
    if (!text) return;
    if (kind === "plugin" || kind === "hook") this.folded("context", text.split("\n")[0], [["", text]]);
    else this.add(make("div", "user", cut(text)));
  }

  chunk(data) {
    const chunk = data.chunk || {};
    if (chunk.type !== "text-delta") return;
    if (!this.live) this.live = this.add(make("div", "reply live"));
    this.live.append(visible(chunk.text));
  }

  endLive() {
    if (this.live) this.live.remove();
    this.live = null;
  }

  reply(data) {
    this.endLive();
    for (const block of data.message.content || []) {
      if (block.type === "text" && block.text) this.add(make("div", "reply", cut(block.text)));
      else if (block.type === "reasoning") this.thinking(block);
      else if (block.type === "tool-call") this.call({ callId: block.id, name: block.name, arguments: block.arguments });
    }
  }

  thinking(block) {
    const text = block.text;
    if (text) this.folded("thinking", text.split("\n")[0], [["", text]]);
  }

  call(data) {
    if (this.calls.has(data.callId)) return;
    let about = data.arguments || "", shown = about;
    try {
      shown = textOf(JSON.parse(about));
      about = shown.replaceAll("\n", " ");
    } catch { /* arguments that are no JSON are shown as they are */ }
    const chip = make("span", "chip", "called");
    const box = this.folded(data.name, about.slice(0, 300), [["Arguments", shown]], chip);
    this.calls.set(data.callId, { box, chip });
  }

  started(data) {
    this.call(data);
    this.mark(data.callId, "running", "running");
  }

  mark(id, name, text) {
    const call = this.calls.get(id);
    if (!call) return;
    call.chip.className = `chip ${name}`;
    write(call.chip, text);
  }

  result(data) {
    for (const block of data.message.content || []) {
      if (block.type !== "tool-result") continue;
      const took = data.meta && data.meta.durationMs !== undefined ? ` ${(data.meta.durationMs / 1000).toFixed(1)} s` : "";
      const word = data.meta && data.meta.denied ? "denied" : block.isError ? "error" : "done";
      this.mark(block.toolCallId, block.isError ? "bad" : "ok", `${word}${took}`);
      const call = this.calls.get(block.toolCallId);
      if (call) call.box.lastChild.append(...part("Result", textIn(block.content)));
    }
  }

  folded(label, about, parts, chip) {
    const body = make("div", "body", ...parts.flatMap(([name, text]) => part(name, text)));
    const box = make("details", "", make("summary", "", make("span", "name", label), make("span", "about", about), chip), body);
    return this.add(box);
  }

  gap(data) {
    this.note(`Events ${data.from} to ${data.to} are not in the log any more`, "warn");
  }

  unreadable(data) {
    this.note(`The log cannot be read: ${data.message}`, "warn");
  }

  retry(data) {
    const failure = data.failure || {};
    this.note(`The model is asked again: ${failure.message || failure.code || "it failed"}`, "warn");
  }

  limit(data) {
    this.note(`A limit was reached: ${data.kind}${data.value === undefined ? "" : ` (${data.value})`}`, "warn");
  }

  asked(data) {
    this.mark(data.callId, "asking", "asking");
  }
}

const VIEWS = {
  "turn/start": "turnStart",
  "turn/end": "turnEnd",
  "step/start": "stepStart",
  "user/message": "user",
  "assistant/chunk": "chunk",
  "assistant/message": "reply",
  "tool/call": "started",
  "tool/result": "result",
  "approval/asked": "asked",
  "llm/retry": "retry",
  "limit/reached": "limit",
  gap: "gap",
  unreadable: "unreadable",
};

function whyEnded(reason) {
  if (reason.kind === "error") return (reason.error || {}).message || "an error";
  const cause = reason.reason || {};
  return [reason.kind, cause.kind, cause.reason].filter((word) => typeof word === "string").join(", ");
}

const cut = (text) =>
  text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}\n… (${(text.length - MAX_TEXT).toLocaleString("en")} more characters)` : text;

function part(name, text) {
  return [...(name ? [make("h4", "", name)] : []), make("pre", "", cut(text || "(nothing)"))];
}

function textIn(content) {
  return (content || []).map((block) => (block.type === "text" ? block.text : `[${block.type}]`)).join("\n");
}

function prepareAgent() {
  $("compose").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = $("text").value, id = chosen;
    if (!text.trim() || id === null) return;
    write($("said"), "");
    try {
      await call("POST", pathOf(id, "messages"), { text, how: $("how").value });
      $("text").value = "";
      write($("said"), "Delivered.");
    } catch (error) {
      write($("said"), error.message);
    }
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("compose").requestSubmit();
  });
  $("cancel").addEventListener("click", async () => {
    try {
      await call("POST", pathOf(chosen, "cancel"), {});
      write($("said"), "Cancelled.");
    } catch (error) {
      write($("said"), error.message);
    }
  });
}
