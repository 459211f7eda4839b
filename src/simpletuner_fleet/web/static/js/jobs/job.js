// A job's curves: the loss and other numbers, and its GPUs beneath them on the same axis.
import { call } from "../common/actions.js";
import { Panels, together } from "../charts/chart-panels.js";
import { Curves } from "../charts/curves.js";
import { said } from "../common/refusals.js";
import { t } from "../common/words.js";

const AGAIN_MS = 3000;
const MARKS_AGAIN_MS = 30000;
const GPU_KEY = /^gpu\.(\d+)\.(utilization|memory_gb|temperature_c|power_w)$/;
const GPU_PANELS = [
  { measure: "utilization", title: t("GPU utilisation"), unit: "%", range: [0, 100] },
  { measure: "memory_gb", title: t("GPU memory"), unit: "GB", range: null },
  { measure: "temperature_c", title: t("GPU temperature"), unit: "°C", range: null },
  { measure: "power_w", title: t("GPU power"), unit: "W", range: null },
];
const MOST_TOGETHER = 6;
const place = document.getElementById("charts");

let timer = null;
let marked = 0;

function panel(curves, title, keys, more = {}) {
  const again = () => keys.map((key) => ({ name: more.name?.(key) ?? key, points: curves.points(key), curves }));
  return { title, keys, again, series: again(), ...more };
}

function wanted(curves, hidden) {
  const asked = place.dataset.keys.split(",").filter(Boolean);
  const own = curves.keys.filter((key) => !GPU_KEY.test(key) && !hidden.has(key));
  if (!asked.length) return together() && own.length ? [panel(curves, "", own.slice(0, 2 * MOST_TOGETHER))] : own.map((key) => panel(curves, key, [key]));
  const losses = own.filter((key) => asked.some((name) => key === name || key.endsWith(`_${name}`) || key.endsWith(`.${name}`)));
  const first = losses.length ? losses.slice(0, MOST_TOGETHER) : own.slice(0, 1);
  return first.length ? [panel(curves, losses.length ? "" : first[0], first)] : [];
}

function arrange(curves, hidden) {
  const found = wanted(curves, hidden);
  for (const { measure, title, unit, range } of GPU_PANELS) {
    const keys = curves.keys.filter((key) => GPU_KEY.exec(key)?.[2] === measure);
    const name = (key) => t("GPU %(number)s", { number: GPU_KEY.exec(key)[1] });
    if (keys.length) found.push(panel(curves, title, keys, { unit, range, name, small: true }));
  }
  return found;
}

async function marks(curves) {
  const job = encodeURIComponent(curves.job);
  const [tries, stored] = await Promise.all([call("GET", `/api/jobs/${job}/attempts`), call("GET", `/api/jobs/${job}/artifacts`)]);
  marked = Date.now();
  return [
    ...tries.attempts.filter((one) => one.attempt > 1 && one.started_at).map((one) => ({ kind: "attempt", step: one.resumed_from_step ?? 0, time: Date.parse(one.started_at) / 1000, label: t("Attempt %(number)s", { number: one.attempt }) })),
    ...stored.manifests.filter((one) => one.kind === "checkpoint").map((one) => ({ kind: "checkpoint", step: one.step, time: Date.parse(one.created_at) / 1000, label: "" })),
  ];
}

async function look(curves, panels) {
  try {
    if (Date.now() - marked > MARKS_AGAIN_MS) panels.view.marks = await marks(curves);
    if (await curves.follow() || place.dataset.ready !== "true") panels.show();
  } catch (problem) {
    if (!problem?.title) throw problem;
    panels.refused(said(problem));
  }
  place.dataset.ready = "true";
}

if (place) {
  const curves = new Curves(place.dataset.job);
  const panels = new Panels(place, document.getElementById("chart-controls"), [curves], (hidden) => arrange(curves, hidden), { axes: ["step", "time", "epoch"], name: place.dataset.job });
  look(curves, panels);
  document.addEventListener("fleet", ({ detail }) => {
    if (detail.type !== "job" || detail.id !== place.dataset.job || timer || document.hidden) return;
    timer = setTimeout(() => { timer = null; document.getElementById("curves")?.removeAttribute("hidden"); look(curves, panels); }, AGAIN_MS);
  });
}
