// A list of any length of which only the visible rows exist. All rows have the same height.

const TALLEST = 8_000_000; // pixels; browsers draw nothing beyond some more
const SPARE = 6; // rows above and below the visible ones
const FETCHED = 100; // rows per request

export class RowList {
  /**
   * @param place Element that scrolls; has `.space`, which is as high as all rows, and `.rows`, which holds the rows.
   * @param fetchRows Called with the first row and the number of rows; resolves to an array of them.
   * @param drawRow Called with a row and its number; returns its element. A row that is not there yet is undefined.
   */
  constructor(place, fetchRows, drawRow) {
    Object.assign(this, { place, fetchRows, drawRow });
    [this.space, this.window] = [place.querySelector(".space"), place.querySelector(".rows")];
    this.clear(0, []);
    place.addEventListener("scroll", () => this.onScroll());
    new ResizeObserver(() => this.resize()).observe(place);
  }

  clear(total, rows) {
    this.total = total;
    this.rows = new Map(rows.map((row, number) => [number, row]));
    this.asked = new Set(rows.length || !total ? [0] : []);
    this.first = 0;
    this.resize();
  }

  resize() {
    this.height = parseFloat(getComputedStyle(this.place).getPropertyValue("--row")) || 60;
    this.visible = Math.max(1, Math.floor(this.place.clientHeight / this.height));
    const height = Math.min(TALLEST, this.total * this.height);
    this.space.style.height = `${height}px`;
    this.window.style.height = `${Math.min(height, this.place.clientHeight)}px`;
    this.scrollToFirst();
  }

  get furthest() {
    return Math.max(0, this.total - this.visible);
  }

  onScroll() {
    if (this.place.scrollTop === this.expected) return;
    const room = this.place.scrollHeight - this.place.clientHeight;
    const share = room > 0 ? this.place.scrollTop / room : 0;
    this.first = Math.round(share * this.furthest);
    this.draw();
  }

  /** Makes a row visible. */
  reveal(number) {
    const last = this.first + this.visible - 1;
    if (number < this.first) this.first = number;
    else if (number > last) this.first = Math.min(this.furthest, number - this.visible + 1);
    this.scrollToFirst();
  }

  scrollToFirst() {
    this.first = Math.min(this.first, this.furthest);
    const room = this.place.scrollHeight - this.place.clientHeight;
    this.place.scrollTop = this.furthest ? (this.first / this.furthest) * room : 0;
    this.expected = this.place.scrollTop;
    this.draw();
  }

  draw() {
    this.fetchMissing();
    const start = this.first;
    const end = Math.min(this.total, this.first + this.visible + SPARE);
    const elements = [];
    for (let number = start; number < end; number++) elements.push(this.drawRow(this.rows.get(number), number));
    this.window.replaceChildren(...elements);
  }

  fetchMissing() {
    const last = Math.min(this.total - 1, this.first + this.visible + SPARE);
    const before = Math.max(0, this.first - SPARE);
    for (let block = Math.floor(before / FETCHED); block <= Math.floor(last / FETCHED); block++) this.fetch(block);
  }

  async fetch(block) {
    if (this.asked.has(block) || block * FETCHED >= this.total) return;
    const { asked, rows } = this;
    asked.add(block);
    try {
      const found = await this.fetchRows(block * FETCHED, FETCHED);
      found.forEach((row, place) => rows.set(block * FETCHED + place, row));
    } catch {
      asked.delete(block);
      return;
    }
    if (rows === this.rows) this.draw();
  }

  /** A row by its number, once it has arrived; undefined if there is none. */
  async get(number) {
    if (number < 0 || number >= this.total) return undefined;
    if (!this.rows.has(number)) await this.fetch(Math.floor(number / FETCHED));
    return this.rows.get(number);
  }
}

export const FIRST_ROWS = FETCHED;
