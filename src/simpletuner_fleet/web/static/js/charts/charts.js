// Curves over one common axis: a line through the last values, and behind it the band from the smallest to the largest
// value of the steps that one point stands for. Missing numbers are gaps. What is drawn is updated in place.
import uPlot from "../../vendor/uplot.js";
import { duration, figure } from "../common/format.js";
import { lang, t } from "../common/words.js";

const HEIGHT = 220;
const SMALL_HEIGHT = 120;
const COLOURS = 8;
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function colour(index) {
  return token(`--series-${(index % COLOURS) + 1}`);
}

export function smoothed(values, weight) {
  if (!weight) return values;
  let held = null;
  let share = 0;
  return values.map((value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return value;
    held = held === null ? value * (1 - weight) : held * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return held / share;
  });
}

// A logarithm knows no zero: what cannot stand on the axis is a gap.
function fits(value, log) {
  return value === null || value === undefined || (log && value <= 0) ? null : value;
}

function columns(series, view) {
  const placed = series.map((one) => one.points.map((point) => one.curves.place(point, view.axis)));
  const places = [...new Set(placed.flat().filter((place) => place !== null && Number.isFinite(place)))].sort((a, b) => a - b);
  const at = new Map(places.map((place, index) => [place, index]));
  const data = [places];
  series.forEach((one, index) => {
    const [low, high, last] = [0, 1, 2].map(() => new Array(places.length).fill(undefined));
    one.points.forEach((point, number) => {
      const where = at.get(placed[index][number]);
      if (where === undefined) return;
      low[where] = fits(point.low, view.log) ?? fits(point.value, view.log);
      high[where] = fits(point.high, view.log);
      last[where] = fits(point.value, view.log);
    });
    data.push(low, high, last);
    if (view.smooth) data.push(smoothed(last, view.smooth));
  });
  return data;
}

function marksPlugin(view) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        for (const mark of view.marks) {
          const place = mark[view.axis];
          if (place === null || place === undefined || place < plot.scales.x.min || place > plot.scales.x.max) continue;
          const x = Math.round(plot.valToPos(place, "x", true));
          ctx.strokeStyle = mark.kind === "attempt" ? token("--warn") : token("--line");
          ctx.setLineDash(mark.kind === "attempt" ? [] : [3, 4]);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          if (!mark.label) continue;
          ctx.fillStyle = token("--warn");
          ctx.textAlign = "start";
          ctx.font = `${11 * devicePixelRatio}px system-ui`;
          ctx.fillText(mark.label, x + 4 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
        }
        ctx.restore();
      },
    },
  };
}

const WHOLE = [...Array(13).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
const AXES = {
  step: { title: t("Step"), tick: (value) => new Intl.NumberFormat(lang, value < 100000 ? {} : { notation: "compact", maximumSignificantDigits: 4 }).format(value), incrs: WHOLE, exact: (value) => String(value) },
  epoch: { title: t("Epoch"), tick: figure, exact: figure },
  time: {
    title: t("Time"),
    tick: (value) => new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit" }).format(value * 1000),
    exact: (value) => new Intl.DateTimeFormat(lang, { dateStyle: "short", timeStyle: "medium" }).format(value * 1000),
  },
  elapsed: { title: t("Time since the start"), tick: duration, exact: duration },
};

function axes(axis, unit) {
  const grid = { stroke: token("--line-soft"), width: 1 };
  const common = { stroke: token("--muted"), font: "12px system-ui", grid, ticks: { show: false } };
  return [
    { ...common, size: 34, values: (plot, ticks) => ticks.map(AXES[axis].tick), ...(AXES[axis].incrs ? { incrs: AXES[axis].incrs } : {}) },
    { ...common, size: 64, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : unit ? `${figure(tick)} ${unit}` : figure(tick))) },
  ];
}

function withUnit(value, unit) {
  return value === null || value === undefined ? "–" : `${figure(value)}${unit ? ` ${unit}` : ""}`;
}

// The line's value, and where several steps are one point, how far they reached.
function said(data, line, index, unit) {
  if (index === null || index === undefined) return "–";
  const [low, high, last] = [data[line - 2][index], data[line - 1][index], data[line][index]];
  if (low === high || low === undefined || low === null) return withUnit(last, unit);
  return t("%(last)s (%(low)s to %(high)s)", { last: withUnit(last, unit), low: figure(low), high: figure(high) });
}

export class Chart {
  // `series`: [{ name, points, curves }]; `view`: { axis, log, smooth, marks, zoom }; `zoomed` is told what was drawn across.
  constructor(place, { series, unit = "", small = false, range = null }, view, zoomed) {
    this.view = view;
    this.per = view.smooth ? 4 : 3;
    const lines = [{ label: AXES[view.axis].title, value: (plot, value) => (value === null ? "–" : AXES[view.axis].exact(value)) }];
    const bands = [];
    series.forEach((one, index) => {
      const hue = colour(index);
      const dash = DASHES[Math.floor(index / COLOURS) % DASHES.length];
      // A peak of one step is a band of no width: its edge is what can be seen of it.
      const edge = { label: "", class: "band-edge", stroke: `${hue}99`, width: 1, points: { show: false } };
      const from = lines.length;
      bands.push({ series: [from + 1, from], fill: `${hue}38` });
      const value = (plot, last, at, where) => said(plot.data, from + 2, where, unit);
      lines.push(edge, edge);
      if (view.smooth) {
        lines.push({ label: one.name, stroke: `${hue}55`, width: 1, points: { show: false }, value });
        lines.push({ label: t("%(name)s, smoothed", { name: one.name }), stroke: hue, width: 1.75, dash, points: { show: false }, value: (plot, last) => withUnit(last, unit) });
      } else {
        lines.push({ label: one.name, stroke: hue, width: 1.5, dash, points: { show: one.points.length < 3 }, value });
      }
    });
    this.plot = new uPlot({
      width: Math.max(240, place.clientWidth),
      height: small ? SMALL_HEIGHT : HEIGHT,
      scales: { x: { time: false }, y: { distr: view.log && !range ? 3 : 1, ...(range ? { range } : {}) } },
      series: lines,
      bands,
      axes: axes(view.axis, unit),
      cursor: { sync: { key: "curves", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, y: false, drag: { setScale: false, x: true, y: false }, bind: { dblclick: () => () => { zoomed(null); } } },
      legend: { live: true },
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          zoomed([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        setSeries: [(plot, at, changed) => {
          const first = at - ((at - 1) % this.per);
          if (changed.show === undefined || at < 1 || at - first !== 2) return;
          for (const edge of [first, first + 1]) if (plot.series[edge].show !== changed.show) plot.setSeries(edge, { show: changed.show });
        }],
      },
      plugins: [marksPlugin(view)],
    }, columns(series, view), place);
    this.zoom();
  }

  get whole() {
    const places = this.plot.data[0];
    return places.length ? [places[0], places.at(-1)] : [0, 1];
  }

  zoom() {
    const [min, max] = this.view.zoom || this.whole;
    if (min < max) this.plot.setScale("x", { min, max });
  }

  update(series) {
    const data = columns(series, this.view);
    this.plot.batch(() => {
      this.plot.setData(data, !this.view.zoom);
      if (this.view.zoom) this.zoom();
    });
  }

  resize(width) {
    this.plot.setSize({ width: Math.max(240, width), height: this.plot.height });
  }

  destroy() {
    this.plot.destroy();
  }
}
