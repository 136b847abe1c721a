// The review of a file of pairs: the current pair, the list, the precision, and the threshold.

import { getJson, onKeys, postJson, showError } from "/static/api.js";
import { Histogram } from "/static/review_histogram.js";
import { markedText } from "/static/search_marks.js";
import { FIRST_ROWS, RowList } from "/static/review_list.js";

const byId = (id) => document.getElementById(id);
const url = `/api/reviews/${encodeURIComponent(byId("review").dataset.name)}`;
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const amount = (count) => count.toLocaleString("en");
const VERDICTS = { accept: "accepted", reject: "rejected" };

let review; // what the server last said about the review
let view; // name of the list that is shown
let selected = 0; // number of the current pair in the list
let changing = Promise.resolve(); // the requests that change something, one after the other
let unsaved = 0; // number of changes that the server has not answered yet

const list = new RowList(
  byId("list"),
  async (start, count) => (await getRows({ view, start, count })).rows,
  drawRow,
);
const histogram = new Histogram(byId("histogram"), {
  describe: describeEstimate,
  onMove: (threshold, estimate) => {
    byId("drag").textContent = `${threshold.toFixed(4)}: about ${describeEstimate(estimate)}`;
  },
  onSet: setThreshold,
});

function describeEstimate({ kept, precision, recall }) {
  const share = precision.value === null ? "not known yet" : percent(precision.value);
  const found = recall.value === null ? "" : `, recall ${percent(recall.value)}`;
  return `${amount(kept)} pairs kept, precision ${share}${found}`;
}

function getRows(query) {
  return getJson(`${url}/rows?${new URLSearchParams(query)}`);
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function sentence(text, side) {
  return element("p", text, { lang: review.langs[side], dir: "auto" });
}

function drawRow(row, number) {
  const option = element("div", undefined, {
    role: "option",
    id: `row-${number}`,
    "aria-setsize": list.total,
    "aria-posinset": number + 1,
    "aria-selected": number === selected,
  });
  if (!row) {
    option.append(element("span", "…", { class: "score" }));
    return option;
  }
  option.className = row.verdict ?? "";
  const label = element("span", row.score.toFixed(4), { class: "score" });
  label.append(element("span", VERDICTS[row.verdict] ?? "", { class: "verdict" }));
  option.append(label, sentence(row.src, 0), sentence(row.tgt, 1));
  option.addEventListener("click", () => select(number));
  return option;
}

function showCurrent(row) {
  const place = byId("current");
  place.className = `card current ${row?.verdict ?? ""}`;
  if (!row) {
    const text = list.total ? "Opening the pair" : "No pair matches. Choose another filter.";
    place.replaceChildren(element("p", text, { class: "muted" }));
    return;
  }
  const about = element("p", undefined, { class: "about" });
  const lines = row.lines[0] === null ? "" : ` · lines ${amount(row.lines[0])} and ${amount(row.lines[1])}`;
  about.append(element("strong", `score ${row.score.toFixed(4)}`));
  about.append(` · ${row.score >= review.threshold ? "above" : "below"} the threshold${lines}`);
  const buttons = element("div", undefined, { class: "buttons" });
  for (const [verdict, label, key] of [["accept", "Accept", "A"], ["reject", "Reject", "R"]]) {
    const button = element("button", `${label} `, { type: "button", "aria-pressed": row.verdict === verdict });
    button.classList.add(verdict);
    button.append(element("kbd", key));
    button.addEventListener("click", () => judge(verdict));
    buttons.append(button);
  }
  const undo = element("button", "Undo ", { type: "button" });
  undo.append(element("kbd", "U"));
  undo.addEventListener("click", () => change({ type: "undo" }));
  buttons.append(undo);
  const sides = element("div", undefined, { class: "sides" });
  sides.append(sentence(row.src, 0), sentence(row.tgt, 1));
  place.replaceChildren(about, sides, buttons);
  markSoon(row, sides);
}

let marking = 0; // timer of the next request for translated words

/** Marks the words that translate each other, unless the reader has gone on. */
function markSoon(row, sides) {
  clearTimeout(marking);
  marking = setTimeout(async () => {
    const { pairs } = await getJson(`${url}/words?row=${row.row}`).catch(() => ({ pairs: [] }));
    for (const side of [0, 1]) {
      const marks = pairs.map((pair) => [pair[side], pair[0], ""]);
      if (marks.length) sides.children[side].replaceChildren(markedText(side ? row.tgt : row.src, marks));
    }
  }, 150);
}

async function select(number) {
  if (!list.total) {
    showCurrent(undefined);
    return;
  }
  selected = Math.min(list.total - 1, Math.max(0, number));
  list.reveal(selected);
  byId("list").setAttribute("aria-activedescendant", `row-${selected}`);
  const wanted = selected;
  const row = list.rows.get(selected) ?? (await list.get(selected));
  if (wanted === selected) showCurrent(row);
}

function showState(state) {
  review = { ...review, ...state };
  const { estimate, counts, gone } = review;
  const { value, low, high } = estimate.precision;
  byId("precision").textContent = value === null ? "not known yet" : percent(value);
  byId("interval").textContent = value === null ? "" : `95 % interval ${percent(low, 0)} to ${percent(high, 0)}`;
  byId("basis").textContent =
    `Of the ${amount(estimate.kept)} pairs above ${estimate.threshold.toFixed(4)}, ${amount(estimate.judged)} are ` +
    `judged; ${amount(estimate.drawn)} of them were drawn at random and represent the others.` +
    (estimate.unknown > 0 && estimate.kept
      ? ` No drawn pair represents ${percent(estimate.unknown)}: judge more in random order.`
      : "");
  const recall = estimate.recall;
  byId("recall").textContent =
    recall.value === null
      ? ""
      : `Recall ${percent(recall.value)} (${percent(recall.low, 0)} to ${percent(recall.high, 0)}) of the right pairs in this file`;
  byId("gone").hidden = !gone;
  byId("gone").textContent = `${amount(gone)} judgements are of pairs that this file no longer has; they do not count.`;
  byId("drag").textContent = describeEstimate(estimate);
  if (document.activeElement !== byId("threshold")) byId("threshold").value = Number(review.threshold.toFixed(6));
  showCount(counts);
  showBands(review.bands);
  histogram.place(review.threshold);
}

function showCount({ accepted, rejected, unjudged }) {
  byId("count").textContent =
    `${amount(list.total)} pairs in this list · ${amount(accepted)} accepted, ${amount(rejected)} rejected, ` +
    `${amount(unjudged)} unjudged in the file` + (unsaved ? ` · saving ${unsaved}` : "");
}

function showBands(bands) {
  const rows = bands.map(({ low, high, pairs, drawn, precision }) => {
    const row = element("tr");
    const cells = [`${low.toFixed(3)} to ${high.toFixed(3)}`, amount(pairs), amount(drawn)];
    cells.push(precision === null ? "?" : percent(precision, 0));
    row.append(...cells.map((cell, place) => element("td", cell, place ? { class: "number" } : {})));
    return row;
  });
  byId("bands").tBodies[0].replaceChildren(...rows);
  const chosen = byId("band").value;
  const options = bands.map(({ low, high }, band) => new Option(`${low.toFixed(3)} to ${high.toFixed(3)}`, band));
  byId("band").replaceChildren(new Option("all", ""), ...options);
  byId("band").value = chosen;
}

let drawing = 0; // timer of the next histogram

function showHistogramSoon() {
  clearTimeout(drawing);
  drawing = setTimeout(() => getJson(`${url}/histogram`).then((found) => histogram.show(found)).catch(showError), 400);
}

/** Loads the list in the chosen order, and selects a pair. */
async function showList(number = 0) {
  const query = { start: 0, count: FIRST_ROWS };
  for (const id of ["order", "show", "band", "text"]) query[id] = byId(id).value;
  const found = await getRows(query);
  view = found.view;
  list.isRandom = query.order === "random" && query.text === "" && ["all", "unjudged"].includes(query.show);
  list.clear(found.total, found.rows);
  showCount(review.counts);
  await select(number);
}

/** Sends a change after those before it. If another window has changed the review, shows what it is like now. */
function change(event) {
  unsaved += 1;
  changing = changing.then(async () => {
    try {
      const state = await postJson(`${url}/events`, { ...event, revision: review.revision });
      unsaved -= 1;
      showError("");
      showState(state);
      showHistogramSoon();
      if (event.type === "undo") await showUndone(state);
    } catch (error) {
      unsaved = Math.max(0, unsaved - 1);
      if (error.status === 409) showState(await getJson(url));
      await showList(selected); // what was shown at once did not happen
      showError(error);
    }
  });
  return changing;
}

async function showUndone({ row, verdict }) {
  if (row === null) return;
  for (const [number, pair] of list.rows) {
    if (pair.row !== row) continue;
    pair.verdict = verdict;
    await select(number);
    return;
  }
}

async function judge(verdict) {
  const number = selected;
  const row = await list.get(number);
  if (!row) return;
  row.verdict = verdict; // shown at once
  change({ type: "judge", row: row.row, verdict, drawn: list.isRandom });
  await select(number + 1);
}

function setThreshold(value) {
  if (value !== review.threshold) change({ type: "threshold", value });
}

async function nextUnjudged() {
  for (let number = selected + 1; number < list.total; number++) {
    const row = await list.get(number);
    if (row && !row.verdict) {
      select(number);
      return;
    }
  }
}

function onSubmit(id, action) {
  byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    showError("");
    Promise.resolve(action()).catch(showError);
  });
}

function say(text, { url: address, file }) {
  const link = element("a", file, { href: address, download: "" });
  byId("done").replaceChildren(text, link);
}

onSubmit("threshold-form", () => setThreshold(byId("threshold").valueAsNumber));
onSubmit("wish", async () => {
  const precision = byId("wished").valueAsNumber / 100;
  const { estimate } = await getJson(`${url}/threshold?precision=${precision}&sure=${byId("sure").checked ? 1 : 0}`);
  if (!estimate) throw new Error("No threshold is known to reach this precision. Judge more pairs in random order, or lower the precision.");
  setThreshold(estimate.threshold);
});
onSubmit("export", async () => {
  const [selection, format] = [byId("selection").value, byId("format").value];
  const made = await postJson(`${url}/export`, { selection, format });
  say(`${amount(made.pairs)} pairs written: `, made);
});
byId("calibrate").addEventListener("click", async () => {
  showError("");
  try {
    const made = await postJson(`${url}/calibrate`, { precision: byId("wished").valueAsNumber / 100 });
    say(`${made.text}. Use it with: ${made.use}. `, made);
  } catch (error) {
    showError(error);
  }
});
byId("filters").addEventListener("change", () => showList().catch(showError));
onSubmit("filters", () => showList());
byId("help").addEventListener("click", () => byId("keys").showModal());

onKeys({
  j: () => select(selected + 1),
  ArrowDown: () => select(selected + 1),
  k: () => select(selected - 1),
  ArrowUp: () => select(selected - 1),
  PageDown: () => select(selected + list.visible),
  PageUp: () => select(selected - list.visible),
  a: () => judge("accept"),
  r: () => judge("reject"),
  u: () => change({ type: "undo" }),
  n: () => nextUnjudged(),
  "/": () => byId("text").focus(),
  "?": () => byId("keys").showModal(),
});

addEventListener("beforeunload", (event) => {
  if (unsaved) event.preventDefault(); // the browser asks whether to leave
});

async function start() {
  review = await getJson(url);
  showState(review);
  await showList();
  histogram.show(await getJson(`${url}/histogram`));
  histogram.place(review.threshold);
}

start().catch(showError);
