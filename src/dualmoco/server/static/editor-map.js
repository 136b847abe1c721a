// The strip above the links: confidence from the first link to the last, what is confirmed, and where the screen is.

export class StripMap {
  /** `jump(number)` is called with the number of the row that was clicked on. */
  constructor(canvas, jump) {
    Object.assign(this, { canvas, rows: [], limit: 0.5, first: 0, last: 0, waiting: false });
    const go = (event) => {
      const share = event.offsetX / canvas.clientWidth;
      jump(Math.min(this.rows.length - 1, Math.max(0, Math.floor(share * this.rows.length))));
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    canvas.addEventListener("pointermove", (event) => event.buttons && go(event));
    new ResizeObserver(() => this.later()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
  }

  show(rows, limit, first, last) {
    Object.assign(this, { rows, limit, first, last });
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const { canvas, rows } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const paint = canvas.getContext("2d");
    paint.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    const [sure, low, accent, line] = ["--good", "--doubtful", "--accent", "--line"].map(colour);
    const count = rows.length;
    if (!count) return;
    const columns = Math.min(Math.floor(width / 3), count);
    for (let column = 0; column < columns; column++) {
      const from = Math.floor((column * count) / columns);
      const to = Math.max(from + 1, Math.floor(((column + 1) * count) / columns));
      this.drawColumn(paint, { from, to, x: (column * width) / columns, step: width / columns }, { sure, low, accent, line });
    }
    paint.strokeStyle = colour("--text");
    paint.globalAlpha = 0.8;
    const x = (this.first / count) * width;
    paint.strokeRect(x + 0.5, 0.5, Math.max(3, ((this.last - this.first) / count) * width) - 1, height - 1);
  }

  drawColumn(paint, { from, to, x, step }, { sure, low, accent, line }) {
    let [lowest, confirmed, open] = [1, 0, 0];
    for (let number = from; number < to; number++) {
      const row = this.rows[number];
      if (row.status === "confirmed") confirmed++;
      else if (row.confidence !== null) {
        open++;
        lowest = Math.min(lowest, row.confidence);
      }
    }
    const width = Math.max(1, step - (step > 4 ? 1 : 0));
    paint.globalAlpha = 0.85;
    paint.fillStyle = open ? (lowest < this.limit ? low : sure) : line;
    const tall = open ? 4 + 18 * lowest : 4;
    paint.fillRect(x, 25 - tall, width, tall);
    paint.fillStyle = accent;
    paint.globalAlpha = 1;
    const done = (7 * confirmed) / (to - from);
    if (done) paint.fillRect(x, 27, width, Math.max(2, done));
  }
}
