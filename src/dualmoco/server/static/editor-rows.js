// The links on the screen. Only rows near the visible part exist as elements; the others are heights in an array.

export const SIDES = ["src", "tgt"];
const OVERSCAN = 400; // pixels above and below the visible part that are drawn as well
const LINE = 27; // pixels of a line of text, to estimate the height of rows that were never drawn

/** A row as the server gives it, as an object; `height` is known once it was drawn. */
export function makeRow([src, tgt, score, confidence, status, isBookmarked]) {
  return { src, tgt, score, confidence, status, isBookmarked, height: 0 };
}

export class RowList {
  /** `draw(row, number)` makes the element of a row. */
  constructor(scroller, place, draw) {
    Object.assign(this, { scroller, place, draw, rows: [], view: [], tops: new Float64Array(1), drawn: new Map() });
    this.waiting = false;
    scroller.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.resized()).observe(scroller);
  }

  /** Shows other rows: all of them, and the numbers of those to show. */
  show(rows, view) {
    Object.assign(this, { rows, view });
    this.redraw();
  }

  /** Draws everything on the screen again. */
  redraw() {
    for (const { element } of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.measure();
    this.render();
  }

  /** Draws one row again, if it is on the screen. */
  redrawRow(number) {
    const place = this.placeOf(number);
    const known = this.drawn.get(place);
    if (!known) return;
    known.element.remove();
    this.drawn.delete(place);
    this.render();
  }

  resized() {
    const width = this.scroller.clientWidth;
    if (width === this.width) return this.later();
    this.width = width;
    for (const row of this.rows) row.height = 0;
    this.redraw();
  }

  /** The place of a row in the view, or of the first one after it; binary search. */
  placeOf(number) {
    let [low, high] = [0, this.view.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.view[middle] < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  measure() {
    const { rows, view } = this;
    const characters = Math.max(12, (this.scroller.clientWidth - 240) / 17);
    const tops = new Float64Array(view.length + 1);
    for (let place = 0; place < view.length; place++) {
      const row = rows[view[place]];
      tops[place + 1] = tops[place] + (row.height || estimate(row, characters));
    }
    this.tops = tops;
    this.place.style.height = `${tops[view.length]}px`;
  }

  placeAt(y) {
    let [low, high] = [0, this.view.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.render();
    });
  }

  /** Draws the rows that are missing on the screen, and measures them; what is at the top of the screen stays there. */
  render() {
    for (let round = 0; round < 3; round++) {
      const top = this.scroller.scrollTop;
      const anchor = this.placeAt(top);
      const inside = top - this.tops[anchor];
      const first = this.placeAt(top - OVERSCAN);
      const last = Math.min(this.view.length, this.placeAt(top + this.scroller.clientHeight + OVERSCAN) + 1);
      this.drawRange(first, last);
      if (!this.measureRange(first, last)) return;
      this.measure();
      for (const [place, { element }] of this.drawn) element.style.transform = `translateY(${this.tops[place]}px)`;
      const wanted = this.tops[anchor] + inside;
      if (Math.abs(wanted - top) >= 1) this.scroller.scrollTop = wanted;
    }
  }

  drawRange(first, last) {
    for (const [place, { element }] of this.drawn) {
      if (place >= first && place < last) continue;
      element.remove();
      this.drawn.delete(place);
    }
    for (let place = first; place < last; place++) {
      if (this.drawn.has(place)) continue;
      const number = this.view[place];
      const element = this.draw(this.rows[number], number);
      element.style.transform = `translateY(${this.tops[place]}px)`;
      this.place.append(element);
      this.drawn.set(place, { element, isNew: true });
    }
  }

  /** Measures new elements, and draws their ribbons; true if a height was not as expected. */
  measureRange(first, last) {
    let isChanged = false;
    const sizes = [];
    for (let place = first; place < last; place++) {
      const known = this.drawn.get(place);
      if (!known.isNew) continue;
      known.isNew = false;
      const [src, , tgt] = known.element.children;
      sizes.push([place, known.element, known.element.offsetHeight, src.offsetHeight, tgt.offsetHeight]);
    }
    for (const [place, element, height, src, tgt] of sizes) {
      const row = this.rows[this.view[place]];
      row.height = height;
      isChanged ||= Math.abs(height - (this.tops[place + 1] - this.tops[place])) >= 0.5;
      drawRibbon(element, src, tgt, row);
    }
    return isChanged;
  }

  /** Scrolls until a row is on the screen, with some room around it. */
  reveal(number) {
    const place = this.placeOf(number);
    const height = this.scroller.clientHeight;
    const room = Math.min(140, height / 4);
    const [top, bottom] = [this.tops[place], this.tops[Math.min(place + 1, this.view.length)]];
    const now = this.scroller.scrollTop;
    if (top - room < now) this.scroller.scrollTop = top - room;
    else if (bottom + room > now + height) this.scroller.scrollTop = bottom + room - height;
    this.render();
  }

  /** The element of a row, if it is on the screen. */
  elementOf(number) {
    const place = this.placeOf(number);
    return this.view[place] === number ? this.drawn.get(place)?.element : undefined;
  }
}

function estimate(row, characters) {
  const lines = SIDES.map((side) =>
    row[side].reduce((sum, [text]) => sum + Math.max(1, Math.ceil(width(text) / characters)), 0),
  );
  return Math.max(1, ...lines) * LINE + 24;
}

const width = (text) => (/[\u2e80-\u9fff]/.test(text) ? 1 : 0.5) * text.length;

/** The ribbon between both sides of a link: as tall as the sentences of each side; a thin end where there are none. */
function drawRibbon(element, src, tgt, row) {
  const [area, edge] = element.querySelectorAll("path");
  const left = row.src.length ? src - 1 : 2;
  const right = row.tgt.length ? tgt - 1 : 2;
  const width = element.children[1].offsetWidth;
  const middle = width / 2;
  const below = (start, end) => `C${middle} ${start} ${middle} ${end}`;
  area.setAttribute("d", `M0 1H${width}V${right}${below(right, left)} 0 ${left}Z`);
  edge.setAttribute("d", `M0 1H${width}M${width} ${right}${below(right, left)} 0 ${left}`);
}
