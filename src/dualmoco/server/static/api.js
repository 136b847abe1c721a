// What all pages share: requests to the server, messages, and keys.

/** Asks the server; throws an Error with the server's message, and its HTTP status as `status`. */
async function request(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, headers: { Accept: "application/json", ...options.headers } });
  } catch {
    throw Object.assign(new Error("The server does not answer. Is dualmoco serve still running?"), { status: 0 });
  }
  const type = response.headers.get("content-type") ?? "";
  const answer = type.startsWith("application/json") ? await response.json() : await response.text();
  if (!response.ok) {
    throw Object.assign(new Error(answer?.error?.message ?? response.statusText), { status: response.status });
  }
  return answer;
}

export function getJson(url, options = {}) {
  return request(url, options);
}

export function postJson(url, body = {}, options = {}) {
  return request(url, {
    method: "POST",
    body: JSON.stringify(body),
    ...options,
    headers: { "Content-Type": "application/json" },
  });
}

/** Stores a File among the project's documents under its name. */
export function uploadFile(file) {
  return request(`/api/documents/${encodeURIComponent(file.name)}`, { method: "PUT", body: file });
}

/** Shows a message until it is closed or replaced; an empty one removes it. */
export function showError(message) {
  const place = document.getElementById("messages");
  place.replaceChildren();
  if (!message) return;
  const text = document.createElement("p");
  text.textContent = message instanceof Error ? message.message : String(message);
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => showError(""));
  place.append(text, close);
}

const isEditing = (target) =>
  target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));

/**
 * Calls a function of `map` when its key is pressed outside of text fields. Keys are named as in KeyboardEvent.key,
 * with modifiers before it in this order: `Ctrl+` (also the Mac's command key), `Alt+`, `Shift+` (for named keys such
 * as `Shift+ArrowUp`; capital letters and signs such as `?` stand for themselves). Returns a function that stops it.
 */
export function onKeys(map) {
  const listen = (event) => {
    if (event.defaultPrevented || event.isComposing || isEditing(event.target)) return;
    const shift = event.shiftKey && event.key.length > 1 ? "Shift+" : "";
    const name = `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${shift}${event.key}`;
    const action = map[name];
    if (!action) return;
    event.preventDefault();
    action(event);
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}

/** Asks for a job every half second, calls `onChange` with it, and resolves when it has ended. */
export async function watchJob(id, onChange = () => {}) {
  for (;;) {
    const job = await getJson(`/api/jobs/${encodeURIComponent(id)}`);
    onChange(job);
    if (!["waiting", "running"].includes(job.state)) return job;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}
