// The page as a whole: what is looked at stands in the address, what changes comes from one stream.
let everything = null, loading = 0, later = [];

function heard(name, data) {
  // A list that is on its way may be older than this.
  if (loading) later.push([name, data]);
  else if (name === "agent.disposed" || data.state === "disposed") drop(data.id);
  else if (name === "agent" || (name === "agent.failed" && data.state)) put(data);
  else if (name === "agent.failed" && data.id) call("GET", pathOf(data.id)).then(put, () => {});
  else if (name === "approval.requested") {
    questions.set(data.id, data);
    drawQuestions();
  } else if (name === "approval.decided") {
    questions.delete(data.id);
    drawQuestions();
  } else if (name === "gap") reload();
}

async function reload() {
  loading += 1;
  try {
    await Promise.all([loadAgents(), loadQuestions()]);
    drawQuestions();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) askForToken(error);
  } finally {
    loading -= 1;
    const waiting = loading ? [] : later.splice(0);
    for (const [name, data] of waiting) heard(name, data);
  }
}

function tell(state, text) {
  $("connection").className = state;
  write($("connection"), text);
}

function askForToken(error) {
  tell("bad", "not allowed");
  $("entry").hidden = false;
  document.body.classList.add("locked");
  write($("entry-note"), error ? error.message : "");
  $("token").focus();
}

function connect() {
  if (everything) everything.abort();
  everything = null;
  if (!sessionStorage.getItem(KEY)) {
    askForToken(null);
    return;
  }
  everything = new AbortController();
  $("entry").hidden = true;
  document.body.classList.remove("locked");
  follow("/v1/events", {
    event: heard,
    state: (state, error) => {
      if (state === "open") {
        tell("ok", "live");
        reload();
      } else if (state === "refused") askForToken(error);
      else tell("bad", "no connection, trying again…");
    },
  }, everything.signal);
}

function go() {
  keepToken();
  const hash = location.hash;
  let id = null;
  if (hash.startsWith("#agent=")) {
    try {
      id = decodeURIComponent(hash.slice(7));
    } catch {
      id = hash.slice(7);
    }
  }
  if (id !== chosen || id === null) openAgent(id || null);
}

$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value.trim());
  $("token").value = "";
  connect();
  go();
});
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (!$("query").offsetParent) location.hash = "";
    $("query").focus();
  } else if (event.key === "Escape" && !typing && chosen !== null) location.hash = "";
});
addEventListener("hashchange", go);
prepareList();
prepareQuestions();
prepareAgent();
go();
connect();
