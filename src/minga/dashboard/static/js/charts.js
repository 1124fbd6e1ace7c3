// Charts with uPlot: lines, stacked areas and stacked bars, with marks, in the colours of the theme.

import { empty, h } from "./dom.js";
import { clock } from "./format.js";

const WHOLE = [1, 2, 5].flatMap((first) => Array.from({ length: 15 }, (_, power) => first * 10 ** power)).sort((one, other) => one - other);
const FONT = "12px system-ui, sans-serif";
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * A chart that is drawn again as data comes. `series`: [{label, color, dash, points, fill}], `format` writes a value,
 * `x`: "time", "samples" or "step". `stacked` adds the series up; `bars` draws bars. Call `show(columns, marks)`, the
 * first column being x; `close` at the end. Values of `counts` are whole numbers.
 */
export class Chart {
  constructor(title, { series, format, x = "time", stacked = false, bars = false, height = 240, whenEmpty, fromZero = true, counts = false }) {
    Object.assign(this, { title, series, format, x, stacked, bars, height, whenEmpty, fromZero, counts });
    this.plotHost = h("div", { class: "plot", role: "img", "aria-label": `${title}: no data yet` });
    this.table = h("div", { class: "scroll", tabindex: "0" });
    this.details = h("details", { class: "values", ontoggle: () => this.fillTable() }, h("summary", {}, "Values as a table"), this.table);
    this.element = h("div", {}, this.plotHost, this.details);
    this.columns = null;
    this.marks = [];
    this.plot = null;
    this.redraw = () => this.rebuild();
    document.addEventListener("themechange", this.redraw);
    this.resizing = new ResizeObserver(() => this.fit());
    this.resizing.observe(this.plotHost);
  }

  /** Uses other series from now on. */
  setSeries(series) {
    if (JSON.stringify(series) === JSON.stringify(this.series)) return;
    this.series = series;
    this.drop();
  }

  setX(x) {
    if (x === this.x) return;
    this.x = x;
    this.drop();
  }

  show(columns, marks = []) {
    this.columns = columns;
    this.marks = marks;
    const hasData = columns[0].length > 0 && columns.slice(1).some((column) => column.some(isKnown));
    this.details.hidden = !hasData;
    if (!hasData) {
      this.drop();
      this.plotHost.replaceChildren(h("div", { class: "chart-empty" }, empty(...this.whenEmpty)));
      return;
    }
    if (this.plot === null) this.build();
    else this.plot.setData(this.drawn());
    this.describe();
    if (this.details.open) this.fillTable();
  }

  close() {
    document.removeEventListener("themechange", this.redraw);
    this.resizing.disconnect();
    this.drop();
  }

  // ---- inner workings

  drop() {
    this.plot?.destroy();
    this.plot = null;
    this.plotHost.replaceChildren();
  }

  rebuild() {
    this.drop();
    if (this.columns) this.show(this.columns, this.marks);
  }

  fit() {
    const width = this.plotHost.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
  }

  /** The columns as they are drawn: stacked ones as sums, the highest first, so that lower ones cover it. */
  drawn() {
    const [x, ...columns] = this.columns;
    if (!this.stacked) return this.columns;
    const sums = x.map(() => 0);
    const stacked = columns.map((column) => column.map((value, place) => (sums[place] += value ?? 0)));
    return [x, ...stacked.reverse()];
  }

  order() {
    const places = this.series.map((_, place) => place);
    return this.stacked ? places.reverse() : places;
  }

  build() {
    this.plotHost.replaceChildren();
    const options = {
      width: this.plotHost.clientWidth || 300,
      height: this.height,
      padding: [10, 22, 0, 0],
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
      scales: { x: { time: this.x === "time", range: this.xRange() }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: this.axes(),
      series: [{ label: { time: "Time", samples: "Samples", step: "Step" }[this.x], value: (_, value) => this.xText(value) }, ...this.lines()],
      hooks: { draw: [(plot) => drawMarks(plot, this.marks)] },
    };
    this.plot = new uPlot(options, this.drawn(), this.plotHost);
  }

  xRange() {
    if (!this.bars) return undefined;
    return (_, low, high) => [low - 0.6, high + 0.6];
  }

  xText(value) {
    if (value === null || value === undefined) return "–";
    return this.x === "time" ? clock(value) : Math.round(value).toLocaleString("en");
  }

  range(low, high) {
    if (low === null || high === null) return [0, 1];
    const bottom = this.fromZero ? Math.min(0, low) : low - Math.max((high - low) * 0.08, Math.abs(high) * 0.01, 1e-9);
    return [bottom, high + Math.max((high - bottom) * 0.08, 1e-9)];
  }

  axes() {
    const grid = { stroke: color("line"), width: 1 };
    const shared = { stroke: color("muted"), font: FONT, grid, ticks: { show: false } };
    const values = (_, splits) => splits.map((split) => (this.x === "step" ? split.toLocaleString("en") : compact(split)));
    const xAxis = { ...shared, grid: { show: false }, ...(this.x === "time" ? { values: timeTicks } : { values, incrs: WHOLE }), space: 70, size: 32 };
    return [xAxis, { ...shared, size: labelWidth, ...(this.counts ? { incrs: WHOLE } : {}), values: (_, splits) => splits.map((split) => this.format(split)) }];
  }

  lines() {
    return this.order().map((place) => {
      const { label, color: name, dash, points, width } = this.series[place];
      const stroke = color(name);
      return {
        label,
        stroke,
        width: this.stacked ? 1 : (width ?? 2),
        dash,
        fill: this.stacked ? `${stroke}${this.bars ? "" : "cc"}` : undefined,
        paths: this.bars ? uPlot.paths.bars({ size: [0.7, 28] }) : undefined,
        points: { show: Boolean(points), size: 6, fill: color("surface"), stroke },
        value: (_, __, ___, index) => this.valueText(place, index),
      };
    });
  }

  valueText(place, index) {
    const column = this.columns[place + 1];
    const value = index === null || index === undefined ? lastKnown(column) : column[index];
    return isKnown(value) ? this.format(value) : "–";
  }

  describe() {
    const last = this.series.map(({ label }, place) => `${label} ${this.valueText(place, null)}`);
    this.plotHost.setAttribute("aria-label", `${this.title}. Latest: ${last.join(", ")}.`);
  }

  fillTable() {
    if (!this.details.open || !this.columns) return;
    const [x, ...columns] = this.columns;
    const places = x.map((_, place) => place).slice(-30).reverse();
    const head = h("tr", {}, h("th", { scope: "col" }, this.x), this.series.map(({ label }) => h("th", { scope: "col" }, label)));
    const rows = places.map((place) =>
      h("tr", {}, h("td", {}, this.xText(x[place])), columns.map((column) => h("td", {}, isKnown(column[place]) ? this.format(column[place]) : "–"))),
    );
    this.table.replaceChildren(h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
  }
}

/** In a column null is a hole in the line, and undefined a place of which only another column tells. */
const isKnown = (value) => value !== null && value !== undefined;

/** As much room as the longest label of the axis takes. */
const labelWidth = (_, labels) => Math.max(44, 16 + 7 * Math.max(0, ...(labels ?? []).map((label) => String(label ?? "").length)));
const lastKnown = (column) => column.findLast(isKnown);
const compact = (value) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

function timeTicks(_, splits) {
  const span = splits.at(-1) - splits[0];
  return splits.map((split) => {
    const date = new Date(split * 1000);
    if (span > 2 * 86_400) return date.toLocaleDateString([], { month: "short", day: "numeric" });
    const seconds = span < 300 ? { second: "2-digit" } : {};
    return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false, ...seconds });
  });
}

const MARKS = {
  joined: ["good", "up"],
  left: ["muted", "down"],
  lost: ["bad", "cross"],
  banned: ["bad", "line"],
  amended: ["accent", "line"],
  paused: ["warn", "line"],
  resumed: ["good", "line"],
  regrouped: ["warn", "line"],
};

/** Comings and goings as small shapes at the bottom, orders and bans as lines, so that no mark is told by colour alone. */
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { x, event } of marks) {
    const [name, shape] = MARKS[event] ?? ["muted", "line"];
    const at = plot.valToPos(x, "x", true);
    if (!(at >= bbox.left && at <= bbox.left + bbox.width)) continue;
    ctx.strokeStyle = ctx.fillStyle = color(name);
    ctx.lineWidth = 1.5 * ratio;
    drawMark(ctx, shape, at, bbox.top, bbox.top + bbox.height, ratio);
  }
  ctx.restore();
}

function drawMark(ctx, shape, at, top, bottom, ratio) {
  const size = 4.5 * ratio;
  const middle = bottom - 8 * ratio;
  ctx.beginPath();
  if (shape === "line") {
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.moveTo(at, top);
    ctx.lineTo(at, bottom);
    ctx.stroke();
    ctx.setLineDash([]);
  } else if (shape === "cross") {
    ctx.moveTo(at - size, middle - size);
    ctx.lineTo(at + size, middle + size);
    ctx.moveTo(at + size, middle - size);
    ctx.lineTo(at - size, middle + size);
    ctx.lineWidth = 2.5 * ratio;
    ctx.stroke();
  } else {
    const way = shape === "up" ? -1 : 1;
    ctx.moveTo(at - size, middle - way * size);
    ctx.lineTo(at + size, middle - way * size);
    ctx.lineTo(at, middle + way * size);
    ctx.fill();
  }
}
