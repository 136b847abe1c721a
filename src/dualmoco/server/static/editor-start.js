// The start page of the editor: the alignments of the project, two documents to align, a file to open.
import { getJson, postJson, showError, uploadFile, watchJob } from "/static/api.js";

const field = (id) => document.getElementById(id);
const suffixes = field("start-script").dataset.suffixes.split(",");
const isLinkFile = (name) => suffixes.some((suffix) => name.toLowerCase().endsWith(suffix));
const isTextOfLinks = (name) => /\.(src|tgt)\.xml$/.test(name);

async function showAlignments() {
  const { alignments } = await getJson("/api/alignments");
  field("no-alignments").hidden = alignments.length > 0;
  field("alignments").replaceChildren(...alignments.map(listItem));
}

function listItem(found) {
  const item = document.createElement("li");
  item.className = "card";
  const link = document.createElement("a");
  link.href = `/align/${encodeURIComponent(found.name)}`;
  link.textContent = found.name;
  const about = document.createElement("small");
  about.textContent = found.error ?? `${found.documents.join(" · ")} (${found.langs.join(", ")})`;
  link.append(about);
  item.append(link);
  if (found.error) return item;
  const bar = document.createElement("progress");
  bar.max = Math.max(1, found.rows);
  bar.value = found.confirmed;
  bar.setAttribute("aria-label", `Confirmed links of ${found.name}`);
  const count = document.createElement("span");
  count.className = "muted";
  count.textContent = `${found.confirmed.toLocaleString("en")} of ${found.rows.toLocaleString("en")}`;
  item.append(bar, count);
  return item;
}

async function showDocuments(chosen = {}) {
  const { documents } = await getJson("/api/documents");
  for (const id of ["src", "tgt", "links"]) {
    const select = field(id);
    const before = chosen[id] ?? select.value;
    const names = documents
      .map((one) => one.name)
      .filter((name) => isLinkFile(name) === (id === "links") && !isTextOfLinks(name));
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(before)) select.value = before;
    else if (id === "tgt" && names.length > 1) select.selectedIndex = 1;
  }
}

async function guarded(action) {
  showError("");
  try {
    await action();
  } catch (error) {
    showError(error);
  }
}

async function upload(files) {
  for (const file of files) await uploadFile(file);
}

for (const id of ["src", "tgt", "links"]) {
  field(`${id}-file`).addEventListener("change", (event) =>
    guarded(async () => {
      const files = [...event.target.files];
      await upload(files);
      const main = files.find((file) => !isTextOfLinks(file.name)) ?? files[0];
      await showDocuments(main ? { [id]: main.name } : {});
    }),
  );
}

field("align-form").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(async () => {
    const { job, name } = await postJson("/api/alignments", { src: field("src").value, tgt: field("tgt").value });
    const ended = await watchJob(job, (now) => {
      const share = now.progress === null ? "" : ` ${Math.round(100 * now.progress)} %`;
      field("job").textContent = now.state === "waiting" ? "Waiting…" : `Aligning: ${now.step}${share}`;
    });
    field("job").textContent = "";
    if (ended.state === "done") location.href = `/align/${encodeURIComponent(name)}`;
    else throw new Error(ended.message || `The alignment was ${ended.state}.`);
  });
});

field("open-form").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(() => openFile(field("links").value));
});

async function openFile(file) {
  const { name } = await postJson("/api/alignments/open", { file });
  location.href = `/align/${encodeURIComponent(name)}`;
}

document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const files = [...event.dataTransfer.files];
  guarded(async () => {
    await upload(files);
    const links = files.filter((file) => isLinkFile(file.name) && !isTextOfLinks(file.name));
    const [src, tgt] = files.filter((file) => !isLinkFile(file.name)).map((file) => file.name);
    await showDocuments({ src, tgt, links: links[0]?.name });
    if (links.length === 1) await openFile(links[0].name);
  });
});

guarded(async () => {
  await Promise.all([showAlignments(), showDocuments()]);
});
