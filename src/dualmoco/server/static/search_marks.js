// Words of a sentence that match words of the query.

/**
 * A sentence with its matching words marked. Each mark is [span, word, title]: the place of the word in the sentence,
 * that of its partner in the query, both as [first, end) in characters, and what a pointer shows. Pointing at a word
 * also shows its partners.
 */
export function markedText(text, marks) {
  const letters = Array.from(text); // places count characters, not UTF-16 units
  const made = document.createDocumentFragment();
  let done = 0;
  for (const [[first, end], word, title] of [...marks].sort((a, b) => a[0][0] - b[0][0])) {
    if (first < done) continue;
    made.append(letters.slice(done, first).join(""));
    const mark = document.createElement("mark");
    mark.textContent = letters.slice(first, end).join("");
    mark.dataset.word = word[0];
    if (title) mark.title = title;
    mark.addEventListener("pointerenter", () => show(mark.dataset.word, true));
    mark.addEventListener("pointerleave", () => show(mark.dataset.word, false));
    made.append(mark);
    done = end;
  }
  made.append(letters.slice(done).join(""));
  return made;
}

function show(word, on) {
  for (const mark of document.querySelectorAll(`mark[data-word="${word}"]`)) mark.classList.toggle("near", on);
}
