// The list of reviews, and the forms that start one.

import { getJson, postJson, showError, uploadFile } from "/static/api.js";

const PAIRS = /\.(tsv|csv|jsonl|tmx)(\.(gz|xz|bz2|zst))?$|\.parquet$/i;
const byId = (id) => document.getElementById(id);

function fill(select, names, first) {
  const chosen = select.value;
  select.replaceChildren(new Option(first, ""), ...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) select.value = chosen;
}

async function showDocuments() {
  const { documents } = await getJson("/api/documents");
  const names = documents.map((document) => document.name).filter((name) => !name.endsWith(".json"));
  fill(byId("file"), names.filter((name) => PAIRS.test(name)), "Choose a file");
  const texts = names.filter((name) => !PAIRS.test(name));
  for (const id of ["src", "tgt"]) fill(byId(id), texts, "Choose a text");
}

async function showReviews() {
  const { reviews } = await getJson("/api/reviews");
  byId("none").hidden = reviews.length > 0;
  byId("reviews").hidden = reviews.length === 0;
  byId("reviews").tBodies[0].replaceChildren(...reviews.map(reviewRow));
}

function reviewRow(review) {
  const row = document.createElement("tr");
  const link = document.createElement("a");
  link.href = `/review/${encodeURIComponent(review.name)}`;
  link.textContent = review.name;
  row.insertCell().append(link);
  row.insertCell().textContent = review.error ?? (review.ready ? review.file : `${review.file} (being mined)`);
  const judged = row.insertCell();
  judged.className = "number";
  judged.textContent = review.judged.toLocaleString("en");
  return row;
}

async function uploadAll(input) {
  for (const file of input.files) await uploadFile(file);
  await showDocuments();
  return [...input.files].map((file) => file.name);
}

function onSubmit(id, action) {
  byId(id).addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = event.target.querySelector("button");
    button.disabled = true;
    showError("");
    try {
      await action();
    } catch (error) {
      showError(error);
    } finally {
      button.disabled = false;
    }
  });
}

onSubmit("open-file", async () => {
  const sent = await uploadAll(byId("upload"));
  const name = sent.find((file) => PAIRS.test(file)) ?? (sent.length ? sent[0] : byId("file").value);
  if (!name) throw new Error("No file is chosen. Choose one of the project, or one from this computer.");
  const made = await postJson("/api/reviews", { file: `documents/${name}` });
  location.href = `/review/${encodeURIComponent(made.name)}`;
});

onSubmit("mine-files", async () => {
  const [src, tgt] = [byId("src").value, byId("tgt").value];
  if (!src || !tgt) throw new Error("Mining needs two texts. Choose one for each side.");
  const body = { src, tgt, model: byId("model").value.trim(), everything: byId("everything").checked };
  const made = await postJson("/api/mined-reviews", body);
  location.href = `/review/${encodeURIComponent(made.name)}`;
});

byId("texts").addEventListener("change", async () => {
  try {
    const [first, second] = await uploadAll(byId("texts"));
    if (first) byId(second || !byId("src").value ? "src" : "tgt").value = first;
    if (second) byId("tgt").value = second;
  } catch (error) {
    showError(error);
  }
});

Promise.all([showDocuments(), showReviews()]).catch(showError);
