// Curves of several runs, one chart for each number and one line for each run.
import { Panels } from "../charts/chart-panels.js";
import { Curves } from "../charts/curves.js";
import { said } from "../common/refusals.js";

const AGAIN_MS = 3000;
const FIRST = /loss/i;
const place = document.getElementById("charts");
const told = document.getElementById("compared");

function keysOf(runs) {
  const keys = [...new Set(runs.flatMap((run) => run.keys))].filter((key) => !key.startsWith("gpu."));
  return keys.sort((one, other) => FIRST.test(other) - FIRST.test(one) || one.localeCompare(other));
}

function arrange(runs, hidden) {
  return keysOf(runs).filter((key) => !hidden.has(key)).map((key) => {
    const again = () => runs.map((run) => ({ name: run.name, points: run.points(key), curves: run }));
    return { title: key, keys: [key], again, series: again() };
  });
}

if (place && told) {
  const runs = JSON.parse(told.textContent).map(({ id, name }) => new Curves(id, name));
  const panels = new Panels(place, document.getElementById("chart-controls"), runs, (hidden) => arrange(runs, hidden), { axes: ["step", "elapsed", "epoch"], name: "compared" });
  const waiting = new Map();
  const look = async (some) => {
    try {
      await Promise.all(some.map((run) => run.follow()));
      panels.show();
    } catch (problem) {
      if (!problem?.title) throw problem;
      panels.refused(said(problem));
    }
    place.dataset.ready = "true";
  };
  look(runs);
  document.addEventListener("fleet", ({ detail }) => {
    const run = runs.find((one) => one.job === detail.id);
    if (detail.type !== "job" || !run || waiting.has(run) || document.hidden) return;
    waiting.set(run, setTimeout(() => { waiting.delete(run); look([run]); }, AGAIN_MS));
  });
}
