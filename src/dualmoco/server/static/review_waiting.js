// A review whose pairs are still being mined: shows the progress, and the review once it is ready.

import { postJson, showError, watchJob } from "/static/api.js";

const place = document.getElementById("waiting");
const [step, progress, cancel] = ["step", "progress", "cancel"].map((id) => document.getElementById(id));
const job = place.dataset.job;

function show({ state, step: what, progress: share, message }) {
  const texts = { waiting: "Waiting for other jobs", failed: message, cancelled: "Cancelled; nothing was written." };
  step.textContent = texts[state] ?? (what || "Mining");
  if (share === null) progress.removeAttribute("value");
  else progress.value = share;
}

cancel.addEventListener("click", () => postJson(`/api/jobs/${encodeURIComponent(job)}/cancel`).catch(showError));

if (job) {
  watchJob(job, show)
    .then(({ state }) => {
      if (state === "done") location.reload();
      else progress.hidden = cancel.hidden = true;
    })
    .catch(showError);
} else {
  progress.hidden = true;
  step.textContent = "The file of this review is missing. Restore it, and reload the page.";
}
