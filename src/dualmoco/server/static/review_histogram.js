// The histogram of the scores with a threshold that can be dragged, or moved by keys.

const [WIDTH, TOP, BOTTOM] = [600, 12, 190];
const make = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

export class Histogram {
  /**
   * @param svg The element to draw in.
   * @param describe Called with the estimate of the nearest bin; returns what a screen reader says.
   * @param onMove Called with a threshold and its rough estimate while it is dragged.
   * @param onSet Called with the threshold that was chosen.
   */
  constructor(svg, { describe, onMove, onSet }) {
    Object.assign(this, { svg, describe, onMove, onSet });
    this.bars = make("g", { class: "bars" });
    this.curve = make("path", { class: "curve" });
    this.axis = make("g", { class: "axis" });
    this.handle = make("g", { class: "handle", role: "slider", tabindex: 0, "aria-label": "Threshold" });
    this.handle.append(
      make("rect", { x: -12, y: TOP - 6, width: 24, height: BOTTOM - TOP + 8, class: "grip" }),
      make("line", { y1: TOP - 6, y2: BOTTOM }),
      make("circle", { cy: TOP, r: 9 }),
    );
    svg.replaceChildren(this.bars, this.curve, this.axis, this.handle);
    svg.addEventListener("pointerdown", (event) => this.drag(event));
    this.handle.addEventListener("keydown", (event) => this.onKey(event));
    this.handle.addEventListener("keyup", () => this.finish());
    this.handle.addEventListener("blur", () => this.finish());
  }

  show({ edges, counts, estimates }) {
    Object.assign(this, { edges, counts, estimates });
    const most = Math.sqrt(Math.max(...counts, 1));
    const width = WIDTH / counts.length;
    this.bars.replaceChildren(
      ...counts.map((count, bin) => {
        const height = (Math.sqrt(count) / most) * (BOTTOM - TOP - 10);
        return make("rect", { x: bin * width + 0.5, y: BOTTOM - height, width: width - 1, height });
      }),
    );
    let path = "";
    estimates.forEach(({ precision: { value } }, bin) => {
      if (value !== null) path += `${path ? "L" : "M"}${bin * width} ${BOTTOM - value * (BOTTOM - TOP - 10)}`;
    });
    this.curve.setAttribute("d", path || "M0 0");
    const labels = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const label = make("text", {
        x: share * WIDTH,
        y: BOTTOM + 20,
        "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle",
      });
      label.textContent = (edges[0] + share * (edges.at(-1) - edges[0])).toFixed(2);
      return label;
    });
    this.axis.replaceChildren(...labels, make("line", { x1: 0, x2: WIDTH, y1: BOTTOM, y2: BOTTOM }));
    if (this.threshold !== undefined) this.place(this.threshold);
  }

  /** Moves the line to a threshold. */
  place(threshold) {
    this.threshold = threshold;
    if (!this.edges) return;
    const [low, high] = [this.edges[0], this.edges.at(-1)];
    const share = high > low ? Math.min(1, Math.max(0, (threshold - low) / (high - low))) : 0;
    this.handle.setAttribute("transform", `translate(${share * WIDTH} 0)`);
    [...this.bars.children].forEach((bar, bin) => bar.classList.toggle("kept", this.edges[bin + 1] > threshold));
    const said = { valuemin: low.toFixed(4), valuemax: high.toFixed(4), valuenow: threshold.toFixed(4) };
    for (const [name, value] of Object.entries(said)) this.handle.setAttribute(`aria-${name}`, value);
    this.handle.setAttribute("aria-valuetext", `${threshold.toFixed(4)}: ${this.describe(this.nearest(threshold))}`);
  }

  nearest(threshold) {
    const width = (this.edges.at(-1) - this.edges[0]) / this.counts.length || 1;
    const bin = Math.round((threshold - this.edges[0]) / width);
    return this.estimates[Math.min(this.estimates.length - 1, Math.max(0, bin))];
  }

  move(threshold) {
    const bounded = Math.min(this.edges.at(-1), Math.max(this.edges[0], threshold));
    this.moved = true;
    this.place(bounded);
    this.onMove(bounded, this.nearest(bounded));
  }

  finish() {
    if (!this.moved) return;
    this.moved = false;
    this.onSet(this.threshold);
  }

  drag(event) {
    if (!this.edges || event.button > 0) return;
    event.preventDefault();
    this.svg.setPointerCapture(event.pointerId);
    const move = ({ clientX }) => {
      const { left, width } = this.svg.getBoundingClientRect();
      this.move(this.edges[0] + ((clientX - left) / width) * (this.edges.at(-1) - this.edges[0]));
    };
    const end = () => {
      this.svg.removeEventListener("pointermove", move);
      this.finish();
    };
    this.svg.addEventListener("pointermove", move);
    this.svg.addEventListener("pointerup", end, { once: true });
    this.svg.addEventListener("pointercancel", end, { once: true });
    move(event);
    this.handle.focus({ preventScroll: true });
  }

  onKey(event) {
    if (!this.edges || event.ctrlKey || event.altKey || event.metaKey) return;
    const range = this.edges.at(-1) - this.edges[0];
    const steps = { ArrowLeft: -0.002, ArrowDown: -0.002, ArrowRight: 0.002, ArrowUp: 0.002, PageDown: -0.05, PageUp: 0.05 };
    const ends = { Home: this.edges[0], End: this.edges.at(-1) };
    if (event.key in steps) this.move(this.threshold + steps[event.key] * range);
    else if (event.key in ends) this.move(ends[event.key]);
    else return;
    event.preventDefault();
  }
}
