// Curves over one common axis. Missing numbers are gaps; the smallest and largest value of what was put together stay.
import uPlot from "../vendor/uplot.js";
import { figure } from "./format.js";
import { lang, t } from "./words.js";

const HEIGHT = 220;
const SMALL_HEIGHT = 120;
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3], [1, 4], [10, 5]];

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function faint(colour) {
  return `${colour}44`;
}

export function smoothed(values, weight) {
  if (!weight) return values;
  let held = null;
  let share = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    held = held === null ? value * (1 - weight) : held * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return held / share;
  });
}

function aligned(series, axis) {
  const places = [...new Set(series.flatMap((one) => one.points.map((point) => point[axis])))].sort((a, b) => a - b);
  const at = new Map(places.map((place, index) => [place, index]));
  const columns = series.map((one) => {
    const column = new Array(places.length).fill(undefined);
    for (const point of one.points) column[at.get(point[axis])] = point.value;
    return column;
  });
  return [places, columns];
}

function marksPlugin(marks, axis) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.lineWidth = devicePixelRatio;
        for (const mark of marks) {
          const place = mark[axis];
          if (place === null || place < plot.scales.x.min || place > plot.scales.x.max) continue;
          const x = Math.round(plot.valToPos(place, "x", true));
          ctx.strokeStyle = mark.kind === "attempt" ? token("--warn") : token("--line");
          ctx.setLineDash(mark.kind === "attempt" ? [] : [3, 4]);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          if (mark.label) {
            ctx.fillStyle = token("--warn");
            ctx.textAlign = "start";
            ctx.font = `${11 * devicePixelRatio}px system-ui`;
            ctx.fillText(mark.label, x + 4 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
          }
        }
        ctx.restore();
      },
    },
  };
}

function axes(axis, unit) {
  const grid = { stroke: token("--line-soft"), width: 1 };
  const common = { stroke: token("--muted"), font: "12px system-ui", grid, ticks: { show: false } };
  const clock = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit" });
  const whole = new Intl.NumberFormat(lang, { notation: "compact" });
  return [
    { ...common, values: (plot, ticks) => ticks.map((tick) => (axis === "time" ? clock.format(tick * 1000) : whole.format(tick))) },
    { ...common, size: 64, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : unit ? `${figure(tick)} ${unit}` : figure(tick))) },
  ];
}

// `series`: [{ name, points: [{ step, time, value }] }]; `view`: { axis, log, smooth, marks }.
export function draw(place, { series, unit = "", small = false, range = null }, view) {
  const [places, columns] = aligned(series, view.axis);
  const colours = series.map((one, index) => token(`--series-${(index % 6) + 1}`));
  const data = [places];
  const lines = [{ label: view.axis === "time" ? t("Time") : t("Step") }];
  series.forEach((one, index) => {
    const dash = DASHES[Math.floor(index / 6) % DASHES.length].length ? DASHES[Math.floor(index / 6)] : index ? DASHES[index % DASHES.length] : [];
    if (view.smooth) {
      data.push(columns[index]);
      lines.push({ label: one.name, stroke: faint(colours[index]), width: 1, spanGaps: false, points: { show: false } });
      data.push(smoothed(columns[index].map((value) => value ?? null), view.smooth));
      lines.push({ label: t("%(name)s, smoothed", { name: one.name }), stroke: colours[index], width: 1.75, dash, points: { show: false } });
    } else {
      data.push(columns[index]);
      lines.push({ label: one.name, stroke: colours[index], width: 1.75, dash, points: { show: places.length < 3 } });
    }
  });
  for (const line of lines.slice(1)) line.value = (plot, value) => (value === null || value === undefined ? "–" : `${figure(value)}${unit ? ` ${unit}` : ""}`);
  const stamp = new Intl.DateTimeFormat(lang, { dateStyle: "short", timeStyle: "medium" });
  lines[0].value = (plot, value) => (value === null ? "–" : view.axis === "time" ? stamp.format(value * 1000) : String(value));
  place.replaceChildren();
  return new uPlot({
    width: Math.max(240, place.clientWidth),
    height: small ? SMALL_HEIGHT : HEIGHT,
    scales: { x: { time: false }, y: { distr: view.log && !range ? 3 : 1, ...(range ? { range } : {}) } },
    series: lines,
    axes: axes(view.axis, unit),
    cursor: { sync: { key: "job" }, y: false },
    legend: { live: true },
    plugins: [marksPlugin(view.marks, view.axis)],
  }, data, place);
}
