// The list of indexes, and the form that builds one of dropped files.

import { postJson, showError, uploadFile, watchJob } from "/static/api.js";

const byId = (id) => document.getElementById(id);
const form = byId("new");
const NEW = "";
let files = [];
let languages = [];
let afterwards = async () => {};
let job = "";

function element(tag, text = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function button(text, label, action) {
  const made = element("button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", () => action(made));
  return made;
}

/** Shows the answer of `/api/indexes`; `refresh` is called with the name of an index when it has changed. */
export function showIndexes(answer, refresh) {
  afterwards = refresh;
  languages = answer.languages;
  byId("indexes").replaceChildren(...answer.indexes.map(indexCard));
  const usable = answer.indexes.filter((index) => !index.error);
  const chosen = byId("target").value;
  byId("target").replaceChildren(
    new Option("a new index", NEW),
    ...usable.map((index) => new Option(`the index ${index.name}`, index.name)),
  );
  if (usable.some((index) => index.name === chosen)) byId("target").value = chosen;
  showTarget();
}

function indexCard(index) {
  const card = element("section");
  card.className = "card index";
  card.append(element("h3", index.name));
  if (index.error) {
    const fault = element("p", index.error);
    fault.className = "error";
    card.append(fault);
    return card;
  }
  const about = element("p", `${index.sentences.toLocaleString("en")} sentences, ${index.kind}, model ${index.model}`);
  about.className = "muted";
  const list = element("ul");
  for (const file of index.files) {
    const item = element("li");
    const what = `${file.documents ? "document" : "sentence"}${file.count === 1 ? "" : "s"}`;
    const count = `${file.count.toLocaleString("en")} ${what}`;
    item.append(element("span", `${file.lang} · ${file.name} · ${count}`));
    item.append(button("Remove", `Remove ${file.name} from ${index.name}`, (own) => removeFile(own, index, file)));
    list.append(item);
  }
  card.append(about, list);
  return card;
}

async function removeFile(own, index, file) {
  if (own.textContent === "Remove") {
    own.textContent = "Really remove?";
    return;
  }
  try {
    await postJson(`/api/indexes/${encodeURIComponent(index.name)}/delete`, { files: [file.name] });
    await afterwards();
  } catch (error) {
    showError(error);
  }
}

function sizeOf(bytes) {
  return bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function choose(list) {
  const most = Number(form.dataset.mostBytes);
  const added = [...list];
  const large = added.find((file) => file.size > most);
  if (large) {
    showError(`${large.name}: ${sizeOf(large.size)}; expected at most ${sizeOf(most)}: split it, or run dualmoco search build`);
    return;
  }
  showError("");
  const names = new Set(added.map((file) => file.name));
  files = [...files.filter((one) => !names.has(one.file.name)), ...added.map((file) => ({ file, lang: "" }))];
  showChosen();
}

function showChosen() {
  byId("chosen").hidden = files.length === 0;
  const rows = files.map((one) => {
    const row = element("tr");
    const select = element("select");
    select.setAttribute("aria-label", `Language of ${one.file.name}`);
    select.append(new Option("recognise", ""), ...languages.map((code) => new Option(code, code)));
    select.value = one.lang;
    select.addEventListener("change", () => {
      one.lang = select.value;
    });
    const remove = button("Remove", `Do not index ${one.file.name}`, () => {
      files = files.filter((other) => other !== one);
      showChosen();
    });
    for (const content of [one.file.name, sizeOf(one.file.size), select, remove]) {
      const cell = element("td");
      cell.append(content);
      row.append(cell);
    }
    return row;
  });
  byId("chosen").querySelector("tbody").replaceChildren(...rows);
  if (files.length && !byId("name").value) byId("name").value = files[0].file.name.replace(/\..*/, "") || "index";
}

function showTarget() {
  const isNew = byId("target").value === NEW;
  byId("naming").hidden = !isNew;
  form.querySelector("button.primary").textContent = isNew ? "Build" : "Add";
}

async function build() {
  const target = byId("target").value;
  const name = target || byId("name").value.trim();
  if (!name) throw new Error("The index needs a name.");
  for (const [place, one] of files.entries()) {
    showStep(`Sending ${one.file.name}`, place / files.length);
    await uploadFile(one.file);
  }
  const body = { name, files: files.map((one) => ({ name: one.file.name, lang: one.lang })) };
  const url = target ? `/api/indexes/${encodeURIComponent(name)}/add` : "/api/indexes";
  job = (await postJson(url, body)).job;
  const ended = await watchJob(job, (state) => showStep(state.step || `${state.title}: ${state.state}`, state.progress));
  job = "";
  if (ended.state === "failed") throw new Error(ended.message);
  if (ended.state !== "done") return;
  files = [];
  byId("name").value = "";
  showChosen();
  await afterwards(name);
}

function showStep(text, share) {
  byId("job").hidden = false;
  byId("step").textContent = text;
  if (share === null || share === undefined) byId("progress").removeAttribute("value");
  else byId("progress").value = share;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const submit = form.querySelector("button.primary");
  if (submit.disabled || !files.length) return;
  submit.disabled = true;
  showError("");
  try {
    await build();
  } catch (error) {
    showError(error);
  } finally {
    submit.disabled = false;
    byId("job").hidden = true;
  }
});
byId("files").addEventListener("change", (event) => {
  choose(event.target.files);
  event.target.value = "";
});
byId("target").addEventListener("change", showTarget);
byId("cancel").addEventListener("click", () => {
  if (job) postJson(`/api/jobs/${encodeURIComponent(job)}/cancel`).catch(showError);
});
for (const name of ["dragenter", "dragover"]) {
  form.addEventListener(name, (event) => {
    event.preventDefault();
    form.classList.add("over");
  });
}
form.addEventListener("dragleave", () => form.classList.remove("over"));
form.addEventListener("drop", (event) => {
  event.preventDefault();
  form.classList.remove("over");
  choose(event.dataTransfer.files);
});
