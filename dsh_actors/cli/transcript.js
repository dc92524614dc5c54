"use strict";
// Search, and opening and closing of what is folded. The page is complete without it.
(() => {
  const MAX_MARKS = 2000;
  const $ = (id) => document.getElementById(id);
  const query = $("query"), found = $("found"), problems = $("problems"), main = $("main");
  const opened = new Set();  // what the search has opened, to be closed after it
  let marks = [], current = -1, timer = 0;

  const units = () => main.querySelectorAll(".unit");
  const isProblem = (unit) =>
    unit.matches(".bad, .denied, .warn") || unit.querySelector(".banner.bad, .banner.warn") !== null;

  function clear() {
    for (const mark of marks) {
      const parent = mark.parentNode;
      mark.replaceWith(document.createTextNode(mark.textContent));
      parent.normalize();
    }
    marks = [];
    current = -1;
    for (const details of opened) details.open = false;
    opened.clear();
    main.classList.remove("filtering");
    for (const hit of main.querySelectorAll(".hit")) hit.classList.remove("hit");
    found.textContent = "";
  }

  function keep(unit) {
    for (let node = unit; node !== main; node = node.parentNode) node.classList.add("hit");
  }

  function open(node) {
    for (; node !== null && node !== document.body; node = node.parentNode) {
      if (node.tagName === "DETAILS" && !node.open) {
        node.open = true;
        opened.add(node);
      }
    }
  }

  function highlight(unit, pattern) {
    const walker = document.createTreeWalker(unit, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) texts.push(walker.currentNode);
    for (const text of texts) {
      let rest = text, taken = 0;
      for (const match of [...text.data.matchAll(pattern)]) {
        if (marks.length >= MAX_MARKS) return;
        const hit = rest.splitText(match.index - taken);
        rest = hit.splitText(match[0].length);
        taken = match.index + match[0].length;
        const mark = document.createElement("mark");
        hit.replaceWith(mark);
        mark.append(hit);
        marks.push(mark);
        if (!mark.closest("summary")) open(mark);
      }
    }
  }

  function search() {
    clear();
    const words = query.value.trim().split(/\s+/).filter(Boolean);
    const only = problems.getAttribute("aria-pressed") === "true";
    if (!words.length && !only) return;
    main.classList.add("filtering");
    const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const tests = escaped.map((word) => new RegExp(word, "i"));
    let places = 0;
    for (const unit of units()) {
      if (only && !isProblem(unit)) continue;
      const text = unit.textContent;
      if (!tests.every((test) => test.test(text))) continue;
      places += 1;
      keep(unit);
      if (words.length && marks.length < MAX_MARKS) highlight(unit, new RegExp(escaped.join("|"), "gi"));
    }
    const full = marks.length >= MAX_MARKS ? "+" : "";
    const total = words.length ? `${marks.length}${full} in ` : "";
    found.textContent = places ? `${total}${places} ${places === 1 ? "place" : "places"}` : "nothing found";
  }

  function go(way) {
    if (!marks.length) return;
    if (current >= 0) marks[current].classList.remove("current");
    current = (current + way + marks.length) % marks.length;
    open(marks[current]);
    marks[current].classList.add("current");
    marks[current].scrollIntoView({ block: "center" });
  }

  function searchSoon() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      search();
      const place = query.value.trim() ? `#q=${encodeURIComponent(query.value.trim())}` : "#";
      history.replaceState(null, "", place);
    }, 150);
  }

  function setAll(isOpen) {
    opened.clear();
    for (const details of main.querySelectorAll("details")) details.open = isOpen;
  }

  function followHash() {
    const hash = location.hash.slice(1);
    if (hash.startsWith("q=")) {
      try {
        query.value = decodeURIComponent(hash.slice(2).replace(/\+/g, " "));
      } catch {
        query.value = hash.slice(2);
      }
      search();
      go(1);
    }
  }

  query.addEventListener("input", searchSoon);
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    }
  });
  $("next").addEventListener("click", () => go(1));
  $("previous").addEventListener("click", () => go(-1));
  $("expand").addEventListener("click", () => setAll(true));
  $("collapse").addEventListener("click", () => setAll(false));
  problems.addEventListener("click", () => {
    problems.setAttribute("aria-pressed", problems.getAttribute("aria-pressed") === "true" ? "false" : "true");
    search();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(event.target.tagName) && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      query.focus();
      query.select();
    } else if (event.key === "Escape" && (query.value || document.activeElement === query)) {
      query.value = "";
      query.blur();
      searchSoon();
    }
  });
  addEventListener("beforeprint", () => {
    for (const details of main.querySelectorAll("details:not([open])")) open(details);
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
    opened.clear();
  });
  addEventListener("hashchange", followHash);
  if (matchMedia("(max-width: 1079px)").matches) {
    for (const list of document.querySelectorAll("nav .turns")) list.open = false;
  }
  $("toolbar").hidden = false;
  followHash();
})();
