// The alignment editor: state, keys and tools. The server decides; this page follows its answers.
import { getJson, onKeys, postJson, showError } from "/static/api.js";
import { StripMap } from "/static/editor-map.js";
import { makeRow, RowList, SIDES } from "/static/editor-rows.js";

const field = (id) => document.getElementById(id);
const address = `/api/alignments/${encodeURIComponent(field("editor").dataset.name)}`;
const state = { rows: [], langs: ["", ""], revision: 0, undo: 0, redo: 0 };
const chosen = { row: 0, side: "src", position: 0 };
let [limit, filter, sure] = [0.5, "all", Promise.resolve()];

// Rows on the screen

const list = new RowList(field("scroller"), field("rows"), drawRow);
const map = new StripMap(field("map"), (number) => select(nearest(number)));
const SVG = "http://www.w3.org/2000/svg";

function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

const isDoubtful = (row) => row.status === "automatic" && row.confidence !== null && row.confidence < limit;

function drawRow(row, number) {
  const element = make("div", "row");
  element.setAttribute("role", "listitem");
  element.setAttribute("aria-posinset", number + 1);
  element.setAttribute("aria-setsize", state.rows.length);
  element.dataset.row = number;
  element.classList.add(row.status);
  element.classList.toggle("doubtful", isDoubtful(row));
  element.classList.toggle("unknown", row.confidence === null);
  element.classList.toggle("marked", row.isBookmarked);
  element.classList.toggle("current", number === chosen.row);
  element.append(drawCell(row, number, "src"), drawLink(row), drawCell(row, number, "tgt"));
  return element;
}

function drawCell(row, number, side) {
  const cell = make("div", "cell");
  cell.dataset.side = side;
  if (!row[side].length) {
    cell.classList.add("empty");
    cell.append(make("span", "visually-hidden", "no sentence"));
  }
  row[side].forEach(([text, place], position) => {
    const line = make("p", "sentence");
    line.dataset.position = position;
    const isChosen = number === chosen.row && side === chosen.side && position === chosen.position;
    line.classList.toggle("current", isChosen);
    const words = make("span", "", text);
    words.lang = state.langs[SIDES.indexOf(side)];
    words.dir = "auto";
    line.append(make("i", "", place), words);
    cell.append(line);
  });
  return cell;
}

function drawLink(row) {
  const link = make("div", "link");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("aria-hidden", "true");
  for (const name of ["area", "edge"]) {
    const path = svg.appendChild(document.createElementNS(SVG, "path"));
    path.setAttribute("class", name);
  }
  const type = `${row.src.length}-${row.tgt.length}`;
  const shown = row.status === "automatic" && row.confidence !== null ? row.confidence.toFixed(2) : row.status;
  const sign = { confirmed: "✓", edited: "✎" }[row.status] ?? (row.confidence === null ? "" : shown);
  const badge = make("button", "badge", `${type} ${sign}`.trim());
  badge.type = "button";
  badge.tabIndex = -1;
  badge.title = row.status === "confirmed" ? "Confirmed; click to undo" : `${shown}; click to confirm`;
  badge.setAttribute("aria-label", `Link ${type}, ${row.status === "automatic" ? `confidence ${shown}` : row.status}`);
  link.append(svg, badge);
  return link;
}

// What is shown

const FILTERS = {
  all: () => true,
  doubtful: isDoubtful,
  open: (row) => row.status !== "confirmed",
  marked: (row) => row.isBookmarked,
};

function showAll() {
  const view = [];
  state.rows.forEach((row, number) => {
    if (filter === "all" || FILTERS[filter](row) || number === chosen.row) view.push(number);
  });
  list.show(state.rows, view);
  field("empty").hidden = view.length > 0;
  showCounts();
}

function showCounts() {
  const [total, confirmed] = [state.rows.length, state.rows.filter((row) => row.status === "confirmed").length];
  const doubtful = state.rows.filter(isDoubtful).length;
  field("progress").max = Math.max(1, total);
  field("progress").value = confirmed;
  const count = (number) => number.toLocaleString("en");
  field("counts").textContent = `${count(confirmed)} of ${count(total)} confirmed, ${count(doubtful)} doubtful`;
  document.querySelector("[data-do=undo]").disabled = !state.undo;
  document.querySelector("[data-do=redo]").disabled = !state.redo;
  showMap();
}

function showMap() {
  const top = field("scroller").scrollTop;
  const bottom = top + field("scroller").clientHeight;
  const at = (y) => list.view[Math.min(list.placeAt(y), list.view.length - 1)] ?? 0;
  map.show(state.rows, limit, at(top), at(bottom) + 1);
}
field("scroller").addEventListener("scroll", showMap, { passive: true });

function say(message) {
  field("said").textContent = message;
}

// Choosing a row and a sentence

function nearest(number) {
  return list.view[Math.min(list.placeOf(number), list.view.length - 1)] ?? 0;
}

function select(row, side = chosen.side, position = 0) {
  const before = chosen.row;
  const count = state.rows.length;
  chosen.row = Math.max(0, Math.min(row, count - 1));
  const found = state.rows[chosen.row];
  chosen.side = side;
  if (found && !found[side].length && found[other(side)].length && row !== before) chosen.side = other(side);
  chosen.position = Math.max(0, Math.min(position, (found?.[chosen.side].length ?? 1) - 1));
  mark(before);
  mark(chosen.row);
  list.reveal(chosen.row);
  showWords();
  if (found) say(`Link ${chosen.row + 1} of ${count}, ${found.src.length} to ${found.tgt.length}, ${found.status}`);
}

const other = (side) => (side === "src" ? "tgt" : "src");

/** Shows whether a row and its sentences are chosen. */
function mark(number) {
  const element = list.elementOf(number);
  if (!element) return;
  const isRow = number === chosen.row;
  element.classList.toggle("current", isRow);
  for (const line of element.querySelectorAll(".sentence")) {
    const is = line.parentElement.dataset.side === chosen.side && Number(line.dataset.position) === chosen.position;
    line.classList.toggle("current", isRow && is);
  }
}

function step(count) {
  const place = list.placeOf(chosen.row) + count;
  if (list.view.length) select(list.view[Math.max(0, Math.min(place, list.view.length - 1))]);
}

function stepSentence(count) {
  select(chosen.row, chosen.side, chosen.position + count);
}

function find(matches, way = 1) {
  const count = state.rows.length;
  for (let distance = 1; distance <= count; distance++) {
    const number = (chosen.row + way * distance + count * distance) % count;
    if (matches(state.rows[number])) return number;
  }
  return -1;
}

function goTo(matches, way, missing) {
  const number = find(matches, way);
  if (number < 0) return say(missing), showNote(missing);
  select(number);
  if (!list.elementOf(number)) {
    showAll();
    select(number);
  }
}

function showNote(text) {
  field("counts").textContent = text;
  setTimeout(showCounts, 2500);
}

// Changes

let pending = 0; // changes that the server has not answered yet, without confirmations
const waiting = []; // names of actions that are meant for what these changes leave

/** Sends changes one after the other. */
function queue(action, isConfirmation = false) {
  if (!isConfirmation) pending++;
  sure = sure
    .then(action)
    .catch(async (error) => {
      showError(error);
      if (error.status === 409 || error.status === 0) await load().catch(() => {});
      else showAll();
    })
    .then(() => {
      if (!isConfirmation) pending--;
      while (!pending && waiting.length) actions[waiting.shift()]();
    });
}

/** Does what a key or button stands for, once the changes before it are on the screen. */
function perform(name) {
  if (pending) waiting.push(name);
  else actions[name]();
}

function change(makeOperation, after = () => {}) {
  return queue(async () => {
    const operation = makeOperation();
    if (operation) follow(await postJson(`${address}/edit`, { revision: state.revision, operation }), after);
  });
}

/** Applies the server's answer: some rows are replaced by others. */
function follow(answer, after = () => {}) {
  showError("");
  let first = state.rows.length;
  let isSame = true;
  for (const [start, count, rows] of answer.splices) {
    const made = rows.map(makeRow);
    if (made.length === count) made.forEach((row, place) => succeed(row, state.rows[start + place]));
    else isSame = false;
    state.rows.splice(start, count, ...made);
    first = Math.min(first, start);
  }
  Object.assign(state, { revision: answer.revision, undo: answer.undo, redo: answer.redo });
  if (isSame && filter === "all") {
    list.rows = state.rows;
    for (const [start, count] of answer.splices) {
      if (count < 200) for (let number = start; number < start + count; number++) list.redrawRow(number);
      else list.redraw();
    }
    showCounts();
  } else showAll();
  after(first);
  select(chosen.row, chosen.side, chosen.position);
}

/** A row takes the place of another one. */
function succeed(row, old) {
  old.successor = row;
  const same = (side) => JSON.stringify(row[side]) === JSON.stringify(old[side]);
  if (same("src") && same("tgt")) row.height = old.height;
}

const here = () => state.rows[chosen.row];

/** Confirms at once on the screen; the server hears of it in its turn. */
function setConfirmed(isConfirmed, row = chosen.row) {
  const found = state.rows[row];
  if (!found || (found.status === "confirmed") === isConfirmed) return;
  const before = found.status;
  found.status = isConfirmed ? "confirmed" : "automatic";
  list.redrawRow(row);
  queue(async () => {
    let present = found;
    while (present.successor) present = present.successor;
    const operation = { type: isConfirmed ? "confirm" : "unconfirm", row: state.rows.indexOf(present) };
    if (operation.row < 0) return;
    try {
      follow(await postJson(`${address}/edit`, { revision: state.revision, operation }));
    } catch (error) {
      found.status = before;
      throw error;
    }
  }, true);
}

function splitLink() {
  const row = here();
  const counts = { [chosen.side]: chosen.position, [other(chosen.side)]: 0 };
  counts[other(chosen.side)] = Math.min(chosen.position, row[other(chosen.side)].length);
  if (!chosen.position) {
    const both = row.src.length > 1 || row.tgt.length > 1;
    counts.src = Math.min(1, row.src.length);
    counts.tgt = both ? Math.min(1, row.tgt.length) : 0;
  }
  return { type: "split", row: chosen.row, ...counts };
}

const sentenceHere = (type, more = {}) => ({ type, row: chosen.row, side: chosen.side, position: chosen.position, ...more });

const actions = {
  next: () => step(1),
  previous: () => step(-1),
  nextPage: () => step(8),
  previousPage: () => step(-8),
  first: () => select(list.view[0] ?? 0),
  last: () => select(list.view.at(-1) ?? 0),
  left: () => select(chosen.row, "src", chosen.position),
  right: () => select(chosen.row, "tgt", chosen.position),
  nextSentence: () => stepSentence(1),
  previousSentence: () => stepSentence(-1),
  confirmNext: () => {
    const number = chosen.row;
    setConfirmed(true, number);
    const following = find((row) => row.status !== "confirmed");
    if (following >= 0) select(following);
  },
  confirm: () => setConfirmed(here()?.status !== "confirmed"),
  nextDoubtful: () => goTo(isDoubtful, 1, "No doubtful link is left"),
  previousDoubtful: () => goTo(isDoubtful, -1, "No doubtful link is left"),
  nextMark: () => goTo((row) => row.isBookmarked, 1, "No link is bookmarked"),
  merge: () => change(() => ({ type: "merge", row: chosen.row })),
  mergeBefore: () => change(() => ({ type: "merge", row: chosen.row - 1 }), () => (chosen.row -= 1)),
  split: () => change(splitLink),
  up: () => change(() => ({ type: "move", row: chosen.row, side: chosen.side, to: "up" })),
  down: () => change(() => ({ type: "move", row: chosen.row, side: chosen.side, to: "down" })),
  join: () => change(() => sentenceHere("join")),
  remove: () => change(() => (here()[chosen.side].length ? sentenceHere("delete") : { type: "delete", row: chosen.row })),
  removeRow: () => change(() => ({ type: "delete", row: chosen.row })),
  insert: () => change(() => ({ type: "insert", row: Math.min(chosen.row + 1, state.rows.length) }), (first) => (chosen.row = first)),
  bookmark: () => change(() => ({ type: "bookmark", row: chosen.row, on: !here().isBookmarked })),
  undo: () => change(() => ({ type: "undo" }), (first) => (chosen.row = first)),
  redo: () => change(() => ({ type: "redo" }), (first) => (chosen.row = first)),
  edit: () => editSentence(),
  realign: () =>
    queue(async () => {
      showNote("Aligning…");
      const started = performance.now();
      const text = here()?.[chosen.side][chosen.position]?.[0];
      try {
        follow(await postJson(`${address}/realign`, { revision: state.revision }), () => {
          const row = state.rows.findIndex((one) => one[chosen.side].some(([own]) => own === text));
          if (row >= 0) chosen.row = row;
        });
        showNote(`Aligned again in ${((performance.now() - started) / 1000).toFixed(1)} s`);
      } catch (error) {
        if (error.message !== "realign changes nothing") throw error;
        showNote("The aligner has nothing to change");
      }
    }),
  find: () => openFind(),
  help: () => field("keys").showModal(),
};

// Editing in place

function editSentence() {
  const { row, side, position } = { ...chosen };
  const cell = list.elementOf(row)?.querySelector(`[data-side=${side}]`);
  if (!cell) return;
  const line = cell.querySelectorAll(".sentence")[position];
  const text = state.rows[row][side][position]?.[0] ?? "";
  const box = make("textarea");
  box.value = text;
  box.setAttribute("aria-label", "Sentence; Enter saves, Control and Enter splits at the cursor, Escape cancels");
  box.lang = state.langs[SIDES.indexOf(side)];
  const place = line ?? cell.appendChild(make("p", "sentence"));
  place.querySelector("span")?.remove();
  place.append(box);
  box.focus();
  let isOpen = true;
  const close = (operation) => {
    if (!isOpen) return;
    isOpen = false;
    list.redrawRow(row);
    field("scroller").focus({ preventScroll: true });
    if (operation) change(() => operation);
  };
  const edited = () => (box.value.trim() === text || !box.value.trim() ? null : { type: "edit", row, side, position, text: box.value });
  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") close(null);
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const offset = [...box.value.slice(0, box.selectionStart)].length; // the server counts characters, not UTF-16
      const operation = edited();
      close(operation);
      change(() => ({ type: "split_sentence", row, side, position, offset }));
    } else if (event.key === "Enter") close(edited());
    else return;
    event.preventDefault();
  });
  box.addEventListener("blur", () => close(edited()));
}

// Search

let found = { key: "", places: [] };

function openFind() {
  field("find").hidden = !field("find").hidden;
  document.querySelector("[data-do=find]").setAttribute("aria-expanded", String(!field("find").hidden));
  if (!field("find").hidden) field("query").select();
}

function search() {
  const sides = field("sides").value;
  return {
    query: field("query").value,
    regex: field("regex").checked,
    case: field("case").checked,
    sides: sides === "both" ? SIDES : [sides],
  };
}

field("find").addEventListener("submit", (event) => {
  event.preventDefault();
  queue(async () => {
    const key = JSON.stringify([search(), state.revision]);
    if (found.key !== key) {
      const answer = await postJson(`${address}/find`, search());
      found = { key, places: answer.found, count: answer.count };
    }
    showError("");
    const order = SIDES.indexOf(chosen.side);
    const isAfter = ([row, side, position]) =>
      row - chosen.row || SIDES.indexOf(side) - order || position - chosen.position;
    const next = found.places.find((place) => isAfter(place) > 0) ?? found.places[0];
    field("found").textContent = `${found.count.toLocaleString("en")} found`;
    if (next) {
      select(...next);
      if (!list.elementOf(next[0])) showAll(), select(...next);
    }
  });
});

field("replace-all").addEventListener("click", () =>
  queue(async () => {
    const body = { ...search(), replacement: field("replacement").value, revision: state.revision };
    const answer = await postJson(`${address}/replace`, body);
    follow(answer);
    field("found").textContent = `${answer.count.toLocaleString("en")} sentences changed`;
  }),
);

field("find").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  openFind();
  field("scroller").focus();
});

// Words that translate each other

let pairs = { key: "", spans: [] };
let wordTimer = 0;

/** Asks for the words of the chosen link, once it has been chosen for a moment. */
function showWords() {
  CSS.highlights?.delete("pair");
  clearTimeout(wordTimer);
  wordTimer = setTimeout(() => loadWords(chosen.row).catch(() => {}), 120);
}

async function loadWords(row) {
  const key = `${state.revision} ${row}`;
  if (pairs.key === key || !CSS.highlights) return;
  const answer = await getJson(`${address}/words?row=${row}`);
  pairs = { key, row, spans: answer.pairs };
}

/** The text node and the offset in it, in UTF-16, of a character of a cell. */
function nodeAt(row, side, character) {
  let left = character;
  const cell = list.elementOf(row)?.querySelector(`[data-side=${side}]`);
  for (const words of cell?.querySelectorAll(".sentence span") ?? []) {
    const text = [...words.textContent];
    if (left <= text.length) return [words.firstChild, text.slice(0, left).join("").length];
    left -= text.length + 1;
  }
  return null;
}

function rangeOf(row, side, [start, end]) {
  const [from, to] = [nodeAt(row, side, start), nodeAt(row, side, end)];
  if (!from || from[0] !== to?.[0]) return null;
  const range = new Range();
  range.setStart(...from);
  range.setEnd(...to);
  return range;
}

field("rows").addEventListener("pointermove", (event) => {
  if (!CSS.highlights) return;
  const element = event.target.closest?.(".row");
  const row = element ? Number(element.dataset.row) : -1;
  if (row >= 0 && pairs.key !== `${state.revision} ${row}`) {
    clearTimeout(wordTimer);
    wordTimer = setTimeout(() => loadWords(row).catch(() => {}), 80);
    return;
  }
  CSS.highlights.delete("pair");
  for (const spans of pairs.spans) {
    const ranges = SIDES.map((side, number) => rangeOf(row, side, spans[number]));
    const isUnder = ranges.some((range) =>
      [...(range?.getClientRects() ?? [])].some(
        (box) => event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom,
      ),
    );
    if (isUnder && ranges.every(Boolean)) CSS.highlights.set("pair", new Highlight(...ranges));
  }
});

// Mouse, keys and tools

field("rows").addEventListener("click", (event) => {
  const element = event.target.closest(".row");
  if (!element || event.target.closest("textarea")) return;
  const row = Number(element.dataset.row);
  if (event.target.closest(".badge")) {
    select(row);
    setConfirmed(state.rows[row].status !== "confirmed", row);
    return;
  }
  const side = event.target.closest(".cell")?.dataset.side ?? chosen.side;
  select(row, side, Number(event.target.closest(".sentence")?.dataset.position ?? 0));
});
field("rows").addEventListener("dblclick", (event) => event.target.closest(".cell") && actions.edit());

const KEYS = [
  ["ArrowDown", "next", "next link"],
  ["j", "next", "next link"],
  ["ArrowUp", "previous", "previous link"],
  ["k", "previous", "previous link"],
  ["PageDown", "nextPage", "some links down"],
  ["PageUp", "previousPage", "some links up"],
  ["Home", "first", "first link"],
  ["End", "last", "last link"],
  ["ArrowLeft", "left", "original"],
  ["ArrowRight", "right", "translation"],
  [".", "nextSentence", "next sentence of the side"],
  [",", "previousSentence", "previous sentence of the side"],
  ["Enter", "confirmNext", "confirm, and go to the next unconfirmed link"],
  ["c", "confirm", "confirm, or undo the confirmation"],
  ["n", "nextDoubtful", "next doubtful link"],
  ["p", "previousDoubtful", "previous doubtful link"],
  ["m", "merge", "merge with the next link"],
  ["M", "mergeBefore", "merge with the previous link"],
  ["s", "split", "split the link before the chosen sentence"],
  ["Alt+ArrowUp", "up", "move the first sentence of the side to the link above"],
  ["Alt+ArrowDown", "down", "move the last sentence of the side to the link below"],
  ["e", "edit", "edit the sentence; Enter saves, Ctrl+Enter splits at the cursor, Escape cancels"],
  ["+", "join", "join the sentence with the next one"],
  ["i", "insert", "insert an empty row below"],
  ["Delete", "remove", "delete the sentence"],
  ["Shift+Delete", "removeRow", "delete the row and its sentences"],
  ["b", "bookmark", "set or remove a bookmark"],
  ["B", "nextMark", "next bookmark"],
  ["r", "realign", "align everything between confirmed links again"],
  ["Ctrl+z", "undo", "undo"],
  ["Ctrl+y", "redo", "redo"],
  ["Ctrl+Z", "redo", "redo"],
  ["/", "find", "find and replace"],
  ["?", "help", "show the keys"],
];

const isControl = (target) => target instanceof HTMLElement && target.matches("button, a, select, summary");
onKeys(
  Object.fromEntries(
    KEYS.map(([key, name]) => [
      key,
      (event) => {
        if (field("keys").open) return;
        if (key === "Enter" && isControl(event.target)) return event.target.click();
        perform(name);
      },
    ]),
  ),
);

for (const [key, , about] of KEYS) {
  const line = make("tr");
  const cell = make("td");
  cell.append(make("kbd", "", key));
  line.append(cell, make("td", "", about));
  field("key-table").append(line);
}
document.querySelectorAll("[data-do]").forEach((button) =>
  button.addEventListener("click", () => {
    perform(button.dataset.do);
    if (!["find", "help", "edit"].includes(button.dataset.do)) field("scroller").focus({ preventScroll: true });
  }),
);
field("filter").addEventListener("change", (event) => {
  filter = event.target.value;
  const first = state.rows.findIndex((row) => FILTERS[filter](row));
  if (first >= 0 && !FILTERS[filter](here())) chosen.row = first;
  showAll();
  select(chosen.row);
});
field("limit").addEventListener("input", (event) => {
  limit = Number(event.target.value);
  field("limit-value").textContent = limit.toFixed(2);
  showAll();
});

function showExport() {
  const query = new URLSearchParams({ format: field("format").value });
  if (field("only-confirmed").checked) query.set("confirmed", "1");
  field("export").href = `${address}/export?${query}`;
}
field("format").addEventListener("change", showExport);
field("only-confirmed").addEventListener("change", showExport);
field("export").addEventListener("click", (event) => {
  if (field("only-confirmed").checked && !state.rows.some((row) => row.status === "confirmed")) {
    event.preventDefault();
    showError("No link is confirmed yet. Confirm some, or export all of them.");
  }
});

async function load() {
  const found = await getJson(address);
  Object.assign(state, found, { rows: found.rows.map(makeRow) });
  field("src-name").textContent = found.names[0];
  field("tgt-name").textContent = found.names[1];
  showAll();
  select(chosen.row, chosen.side, chosen.position);
}

showExport();
load()
  .then(() => {
    field("scroller").focus({ preventScroll: true });
    field("editor").dataset.ready = "yes";
    return postJson(`${address}/prepare`).catch(() => {});
  })
  .catch(showError);
