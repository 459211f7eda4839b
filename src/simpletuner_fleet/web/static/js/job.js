// A job's curves: the loss and other numbers, and its GPUs beneath them on the same axis.
import { call } from "./actions.js";
import { draw } from "./charts.js";
import { get, put } from "./kept.js";
import { number } from "./format.js";
import { t } from "./words.js";

const POINTS = 1000;
const AGAIN_MS = 3000;
const GPU_KEY = /^gpu\.(\d+)\.(utilization|memory_gb|temperature_c|power_w)$/;
const GPU_PANELS = [
  { measure: "utilization", title: t("GPU utilisation"), unit: "%", range: [0, 100] },
  { measure: "memory_gb", title: t("GPU memory"), unit: "GB", range: null },
  { measure: "temperature_c", title: t("GPU temperature"), unit: "°C", range: null },
  { measure: "power_w", title: t("GPU power"), unit: "W", range: null },
];
const place = document.getElementById("charts");
const view = { axis: get("chart-axis", "step"), log: get("chart-log", "off") === "on", smooth: Number(get("chart-smooth", "0")), marks: [] };

let panels = [];
let told = null;
let timer = null;
let plots = [];

function finite(value) {
  if (value === null || value === undefined) return null;
  const found = Number(value);
  return Number.isFinite(found) ? found : null;
}

function points(curve) {
  return curve.map((point) => ({ step: point.step, time: Date.parse(point.at) / 1000, value: finite(point.last) }));
}

function wanted(keys) {
  const asked = place.dataset.keys.split(",").filter(Boolean);
  const own = keys.filter((key) => !GPU_KEY.test(key));
  if (!asked.length) return own.map((key) => ({ title: key, keys: [key] }));
  const losses = own.filter((key) => asked.some((name) => key === name || key.endsWith(`_${name}`) || key.endsWith(`.${name}`)));
  return losses.length ? [{ title: "", keys: losses.slice(0, 6) }] : own.slice(0, 1).map((key) => ({ title: key, keys: [key] }));
}

function arrange() {
  const found = wanted(told.keys).map((one) => ({ ...one, series: one.keys.map((key) => ({ name: key, points: points(told.series[key] || []) })) }));
  if (place.dataset.gpus !== "true") return found;
  for (const { measure, title, unit, range } of GPU_PANELS) {
    const keys = told.keys.filter((key) => GPU_KEY.exec(key)?.[2] === measure);
    const series = keys.map((key) => ({ name: t("GPU %(number)s", { number: GPU_KEY.exec(key)[1] }), points: points(told.series[key] || []) }));
    if (series.some((one) => one.points.length)) found.push({ title, unit, range, small: true, series });
  }
  return found;
}

async function marks() {
  const job = encodeURIComponent(place.dataset.job);
  const [tries, stored] = await Promise.all([call("GET", `/api/jobs/${job}/attempts`), call("GET", `/api/jobs/${job}/artifacts`)]);
  return [
    ...tries.attempts.filter((one) => one.attempt > 1 && one.started_at).map((one) => ({ kind: "attempt", step: one.resumed_from_step ?? 0, time: Date.parse(one.started_at) / 1000, label: t("Attempt %(number)s", { number: one.attempt }) })),
    ...stored.manifests.filter((one) => one.kind === "checkpoint").map((one) => ({ kind: "checkpoint", step: one.step, time: Date.parse(one.created_at) / 1000, label: "" })),
  ];
}

function render() {
  for (const plot of plots) plot.destroy();
  plots = [];
  place.replaceChildren();
  panels = arrange();
  if (!panels.some((panel) => panel.series.some((one) => one.points.length))) {
    const said = document.createElement("p");
    said.className = "muted";
    said.textContent = t("No metrics yet. Curves appear with the trainer's first step.");
    place.append(said);
    return;
  }
  for (const panel of panels) {
    const box = document.createElement("div");
    box.className = panel.small ? "panel small" : "panel";
    if (panel.title) {
      const title = document.createElement("h3");
      title.textContent = panel.title;
      box.append(title);
    }
    const canvas = document.createElement("div");
    canvas.className = "plot";
    box.append(canvas);
    place.append(box);
    plots.push(draw(canvas, panel, view));
  }
  place.append(countLine(), table());
}

function countLine() {
  const shown = Math.max(...panels.filter((panel) => !panel.small).flatMap((panel) => panel.series.map((one) => one.points.length)), 0);
  const line = document.createElement("p");
  line.className = "muted points";
  line.textContent = t("%(shown)s of %(all)s points shown: the last one of each interval.", { shown: number(shown), all: number(told.total) });
  return line;
}

function table() {
  const fold = document.createElement("details");
  fold.className = "fold";
  const summary = document.createElement("summary");
  summary.textContent = t("Show as table");
  fold.append(summary);
  fold.addEventListener("toggle", () => {
    if (!fold.open || fold.childElementCount > 1) return;
    const box = document.createElement("div");
    box.className = "table-box chart-table";
    box.tabIndex = 0;
    const grid = document.createElement("table");
    const columns = panels.filter((panel) => !panel.small).flatMap((panel) => panel.series);
    const row = (cells, kind) => {
      const line = document.createElement("tr");
      line.append(...cells.map((text) => Object.assign(document.createElement(kind), { textContent: text, ...(kind === "th" ? { scope: "col" } : {}) })));
      return line;
    };
    const head = document.createElement("thead");
    head.append(row([t("Step"), ...columns.map((one) => one.name)], "th"));
    const body = document.createElement("tbody");
    const steps = [...new Set(columns.flatMap((one) => one.points.map((point) => point.step)))].sort((a, b) => b - a).slice(0, 200);
    const values = columns.map((one) => new Map(one.points.map((point) => [point.step, point.value])));
    for (const step of steps) body.append(row([String(step), ...values.map((by) => (by.get(step) ?? "–").toString())], "td"));
    grid.append(head, body);
    box.append(grid);
    fold.append(box);
  });
  return fold;
}

function control(html) {
  const label = document.createElement("label");
  label.className = "check";
  label.append(...html);
  return label;
}

function controls() {
  const bar = document.getElementById("chart-controls");
  if (!bar) return;
  const axis = document.createElement("select");
  axis.setAttribute("aria-label", t("X axis"));
  axis.append(new Option(t("by step"), "step"), new Option(t("by time"), "time"));
  axis.value = view.axis;
  axis.addEventListener("change", () => { view.axis = axis.value; put("chart-axis", view.axis); render(); });
  const log = Object.assign(document.createElement("input"), { type: "checkbox", checked: view.log });
  log.addEventListener("change", () => { view.log = log.checked; put("chart-log", log.checked ? "on" : "off"); render(); });
  const smooth = Object.assign(document.createElement("input"), { type: "range", min: "0", max: "0.98", step: "0.02", value: String(view.smooth) });
  smooth.setAttribute("aria-label", t("Smoothing"));
  smooth.addEventListener("input", () => { view.smooth = Number(smooth.value); put("chart-smooth", smooth.value); render(); });
  bar.replaceChildren(axis, control([log, t("logarithmic")]), control([t("smooth"), smooth]));
}

async function load() {
  const query = new URLSearchParams({ points: String(POINTS) });
  try {
    [told, view.marks] = await Promise.all([call("GET", `/api/jobs/${encodeURIComponent(place.dataset.job)}/metrics?${query}`), marks()]);
    render();
  } catch (problem) {
    if (!problem?.title) throw problem;
    place.textContent = [problem.title, problem.detail].filter(Boolean).join(" ");
  }
  place.dataset.ready = "true";
}

if (place) {
  controls();
  load();
  document.addEventListener("fleet", ({ detail }) => {
    if (detail.type !== "job" || detail.id !== place.dataset.job || timer || document.hidden) return;
    timer = setTimeout(() => { timer = null; document.getElementById("curves")?.removeAttribute("hidden"); load(); }, AGAIN_MS);
  });
  document.addEventListener("theme", () => told && render());
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(place.clientWidth - width) < 8 || !told) return;
    width = place.clientWidth;
    for (const plot of plots) plot.setSize({ width: Math.max(240, width), height: plot.height });
  }).observe(place);
}
