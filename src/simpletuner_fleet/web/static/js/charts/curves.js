// The numbers of one job: all of them once, then only what was added; finer where somebody looks closer.
import { call } from "../common/actions.js";

const POINTS = 1000;
const EPOCH = /^(train[_.])?epoch$/;

function finite(value) {
  if (value === null || value === undefined) return null;
  const found = Number(value);
  return Number.isFinite(found) ? found : null;
}

function readPoint(told) {
  return { step: told.step, time: Date.parse(told.at) / 1000, low: told.min, high: told.max, value: finite(told.last) };
}

// A curve's value at a step, between the points that are told of it.
function along(points, step) {
  let low = 0;
  let high = points.length - 1;
  if (high < 0) return null;
  if (step <= points[0].step) return points[0].value;
  if (step >= points[high].step) return points[high].value;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].step <= step) low = middle; else high = middle;
  }
  const [one, other] = [points[low], points[high]];
  return one.value + ((other.value - one.value) * (step - one.step)) / (other.step - one.step || 1);
}

export class Curves {
  constructor(job, name = "") {
    this.job = job;
    this.name = name;
    this.keys = [];
    this.total = 0;
    // Keys are a trainer's own words: "constructor" is one as any other.
    this.known = Object.create(null);
    this.closer = null;
    this.cursor = null;
  }

  address(options) {
    return `/api/jobs/${encodeURIComponent(this.job)}/metrics?${new URLSearchParams({ points: String(POINTS), ...options })}`;
  }

  // Returns whether anything is new.
  async follow() {
    const told = await call("GET", this.address(this.cursor ? { after: this.cursor } : {}));
    const changed = told.cursor !== this.cursor;
    this.cursor = told.cursor;
    this.keys = told.keys;
    this.total = told.total;
    for (const [key, points] of Object.entries(told.series)) {
      const known = (this.known[key] ??= []);
      known.length = Math.min(known.length, told.begins[key]);
      for (const point of points) known.push(readPoint(point));
    }
    for (const key of Object.keys(this.known)) if (!told.keys.includes(key)) delete this.known[key];
    return changed;
  }

  async lookCloser(from, to) {
    const told = await call("GET", this.address({ from_step: String(from), to_step: String(to) }));
    this.closer = { from, to, series: Object.assign(Object.create(null), Object.fromEntries(Object.entries(told.series).map(([key, points]) => [key, points.map(readPoint)]))) };
  }

  lookFromAfar() {
    this.closer = null;
  }

  points(key) {
    const known = this.known[key] || [];
    const finer = this.closer?.series[key];
    if (!finer?.length || key.startsWith("gpu.")) return known;
    const { from, to } = this.closer;
    return [...known.filter((point) => point.step < from), ...finer, ...known.filter((point) => point.step > to)];
  }

  get epochs() {
    return this.keys.some((key) => EPOCH.test(key));
  }

  get began() {
    return Math.min(...Object.values(this.known).map((points) => points[0]?.time ?? Infinity));
  }

  place(point, axis) {
    if (axis === "step") return point.step;
    if (axis === "time") return point.time;
    if (axis === "elapsed") return point.time - this.began;
    return along(this.known[this.keys.find((key) => EPOCH.test(key))] || [], point.step);
  }

  // Which steps lie between two places of the axis, with a neighbour on each side.
  steps(axis, least, most) {
    const own = Object.entries(this.known).filter(([key]) => !key.startsWith("gpu.")).flatMap(([, points]) => points);
    const within = own.filter((point) => { const at = this.place(point, axis); return at >= least && at <= most; }).map((point) => point.step);
    const before = Math.max(0, ...own.filter((point) => this.place(point, axis) < least).map((point) => point.step));
    const after = own.filter((point) => this.place(point, axis) > most).map((point) => point.step);
    return [before, after.length ? Math.min(...after) : Math.max(before, ...within)];
  }
}
