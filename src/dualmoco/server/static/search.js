// The search box, and the hits of each language.

import { getJson, postJson, showError } from "/static/api.js";
import { showIndexes } from "/static/search_indexes.js";
import { markedText } from "/static/search_marks.js";

const byId = (id) => document.getElementById(id);
const language = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
const nameOf = (code) => (/^[a-z]{2,3}([-_][a-z]+)*$/i.test(code) ? language.of(code.replaceAll("_", "-")) : code);
let indexes = [];
let asked = 0;
let current = { offset: {} };

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(select, options, first) {
  const chosen = select.value;
  const all = first ? [["", first], ...options] : options;
  select.replaceChildren(...all.map(([value, label]) => new Option(label, value)));
  if (all.some(([value]) => value === chosen)) select.value = chosen;
}

const chosenIndex = () => indexes.find((index) => index.name === byId("index").value);

/** Fills the lists of indexes, languages, files and metadata fields. */
async function refresh(chosen) {
  const answer = await getJson("/api/indexes");
  indexes = answer.indexes.filter((index) => !index.error);
  fill(byId("index"), indexes.map((index) => [index.name, index.name]));
  if (chosen && indexes.some((index) => index.name === chosen)) byId("index").value = chosen;
  fill(byId("lang"), answer.languages.map((code) => [code, nameOf(code)]), "recognised");
  byId("text").disabled = byId("query").querySelector("button").disabled = indexes.length === 0;
  byId("query").hidden = indexes.length === 0;
  if (!indexes.length) byId("status").textContent = "There is no index yet. Build one from your files below.";
  showFilters();
  showIndexes(answer, refresh);
}

function showFilters() {
  const index = chosenIndex();
  const files = [...new Set((index?.files ?? []).map((file) => file.name))];
  fill(byId("file"), files.map((name) => [name, name]), "all");
  byId("file").parentElement.hidden = files.length < 2;
  const before = new Map(filterInputs().map((input) => [input.dataset.field + input.dataset.sign, input.value]));
  const places = Object.entries(index?.fields ?? {}).map(([name, kind]) => filterField(name, kind, index.values[name]));
  byId("fields").replaceChildren(...places);
  for (const input of filterInputs()) input.value = before.get(input.dataset.field + input.dataset.sign) ?? "";
  byId("status").textContent = index ? describe(index) : byId("status").textContent;
}

function describe(index) {
  const size = `${index.sentences.toLocaleString("en")} sentences in ${index.languages.map(nameOf).join(", ")}.`;
  if (!index.lists) return `${size} Exact search: every sentence is compared.`;
  const { lists, probes, recall } = index.lists;
  const share = `${(100 * recall).toFixed(1)} % of the true nearest sentences, measured on a sample`;
  return `${size} Approximate search: searches ${probes} of ${lists} lists and finds ${share}. Scores are exact.`;
}

function filterField(name, kind, values) {
  const place = element("span", "", "option");
  const label = element("label", name);
  const id = `field-${name}`;
  label.htmlFor = id;
  place.append(label);
  if (kind === "number") {
    for (const [sign, title] of [[">=", "from"], ["<=", "to"]]) {
      const input = element("input");
      input.type = "number";
      input.step = "any";
      input.placeholder = title;
      input.setAttribute("aria-label", `${name} ${title}`);
      if (sign === ">=") input.id = id;
      Object.assign(input.dataset, { field: name, sign });
      place.append(input);
    }
    return place;
  }
  const choices = kind === "text" ? values : ["true", "false"];
  const input = element(choices?.length ? "select" : "input");
  if (choices?.length) fill(input, choices.map((value) => [value, value]), "any");
  input.id = id;
  Object.assign(input.dataset, { field: name, sign: "=", kind });
  place.append(input);
  return place;
}

const filterInputs = () => [...byId("fields").querySelectorAll("[data-field]")];

function filterOf() {
  const filter = {};
  for (const input of filterInputs()) {
    if (input.value === "") continue;
    const { field, sign, kind } = input.dataset;
    if (sign === "=") filter[field] = kind === "text" ? input.value : input.value === "true";
    else (filter[field] ??= {})[sign] = Number(input.value);
  }
  return filter;
}

async function search() {
  const text = byId("text").value.trim();
  const index = chosenIndex();
  if (!text || !index) {
    showError(index ? "Write a sentence to search for." : "Build an index first.");
    return;
  }
  showError("");
  const own = ++asked;
  const file = byId("file").value;
  const body = { text, lang: byId("lang").value, offset: current.offset, filter: filterOf(), files: file ? [file] : [] };
  const start = performance.now();
  try {
    const found = await postJson(`/api/indexes/${encodeURIComponent(index.name)}/search`, body);
    if (own !== asked) return;
    const milliseconds = Math.round(performance.now() - start);
    const how = found.recognized ? `recognised as ${nameOf(found.lang)}` : nameOf(found.lang);
    byId("status").textContent = `Query: ${how}. ${describe(index)} ${milliseconds} ms.`;
    showResults(found, index);
  } catch (error) {
    if (own === asked) showError(error);
  }
}

function startSearch() {
  current = { offset: {} };
  return search();
}

function showResults(found, index) {
  const marks = Object.values(found.languages).flatMap((one) => one.hits.flatMap((hit) => hit.marks));
  byId("echo").hidden = marks.length === 0;
  byId("echo").replaceChildren("Your words: ", markedText(found.text, marks.map((mark) => [mark.word, mark.word, ""])));
  const columns = Object.entries(found.languages).map(([code, one]) => column(code, one, index, found));
  byId("results").replaceChildren(...columns);
}

function column(code, one, index, found) {
  const section = element("section", "", "card");
  const title = element("h2", nameOf(code));
  title.id = `hits-${code}`;
  section.setAttribute("aria-labelledby", title.id);
  const list = element("ol", "", "hits");
  list.start = one.offset + 1;
  list.append(...one.hits.map((hit) => hitItem(hit, index, found)));
  section.append(title, one.hits.length ? list : element("p", "Nothing found.", "muted"));
  const pages = element("div", "", "pages");
  for (const [label, change, shown] of [
    ["Nearer", -10, one.offset > 0],
    ["More", 10, one.more],
  ]) {
    if (!shown) continue;
    const button = element("button", label);
    button.type = "button";
    button.setAttribute("aria-label", `${label} in ${nameOf(code)}`);
    button.addEventListener("click", () => {
      current.offset[code] = Math.max(0, one.offset + change);
      search();
    });
    pages.append(button);
  }
  if (pages.children.length) section.append(pages);
  return section;
}

function hitItem(hit, index, found) {
  const item = element("li");
  const text = element("p", "", "hit-text");
  text.lang = hit.lang;
  const letters = Array.from(found.text);
  const titled = hit.marks.map((mark) => [
    mark.other,
    mark.word,
    `${letters.slice(...mark.word).join("")} (similarity ${mark.cosine.toFixed(2)})`,
  ]);
  text.append(markedText(hit.text, titled));
  const line = element("div", "", "hit-line");
  const score = element("span", hit.score.toFixed(3), "score");
  score.title = "cosine with the query";
  const more = hit.lines.length > 1 ? ` and ${hit.lines.length - 1} more` : "";
  line.append(score, element("span", `${hit.part}, line ${hit.line}${more}`));
  for (const [name, value] of Object.entries(hit.metadata)) line.append(element("span", `${name}: ${value}`, "tag"));
  if (index.languages.length > 1) line.append(translationButton(hit));
  if (hit.id) line.append(deleteButton(hit, index));
  item.append(text, line);
  return item;
}

function translationButton(hit) {
  const button = element("button", "Find its translation");
  button.type = "button";
  button.addEventListener("click", () => {
    byId("text").value = hit.text;
    byId("lang").value = hit.lang;
    startSearch();
    byId("text").focus();
  });
  return button;
}

function deleteButton(hit, index) {
  const button = element("button", "Delete");
  button.type = "button";
  button.setAttribute("aria-label", `Delete document ${hit.id}`);
  button.addEventListener("click", async () => {
    if (button.textContent === "Delete") {
      button.textContent = "Really delete?";
      return;
    }
    try {
      await postJson(`/api/indexes/${encodeURIComponent(index.name)}/delete`, { ids: [hit.id] });
      await refresh();
      await search();
    } catch (error) {
      showError(error);
    }
  });
  return button;
}

byId("query").addEventListener("submit", (event) => {
  event.preventDefault();
  startSearch();
});
byId("index").addEventListener("change", () => {
  byId("results").replaceChildren();
  byId("echo").hidden = true;
  showFilters();
});
for (const id of ["fields", "file", "lang"]) {
  byId(id).addEventListener("change", () => {
    if (byId("results").children.length) startSearch();
  });
}
refresh().catch(showError);
