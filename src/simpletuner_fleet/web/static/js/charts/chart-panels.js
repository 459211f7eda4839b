// Charts with their controls: along what, how smooth, which numbers, closer or from afar. Nothing is rebuilt while it grows.
import { savePicture, saveTable } from "./chart-export.js";
import { Chart } from "./charts.js";
import { get, put } from "../common/kept.js";
import { figure, number } from "../common/format.js";
import { t } from "../common/words.js";

const TABLE_ROWS = 200;
const CLOSER_AFTER_MS = 250;

function make(tag, fields = {}, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
}

// Returns what puts the focus back where it was in this part of the page, once that is drawn anew.
function focusIn(root) {
  const all = () => [...(root?.querySelectorAll("select, input, button, summary, [tabindex]") ?? [])];
  const at = all().indexOf(document.activeElement);
  return () => all()[at]?.focus({ preventScroll: true });
}

function summary(panel) {
  return panel.series.map((one) => {
    const points = one.points.filter((point) => point.value !== null);
    if (!points.length) return t("%(name)s: no number yet", { name: one.name });
    const low = points.reduce((least, point) => Math.min(least, point.low ?? point.value), Infinity);
    const high = points.reduce((most, point) => Math.max(most, point.high ?? point.value), -Infinity);
    return t("%(name)s: up to step %(step)s, last %(last)s, smallest %(low)s, largest %(high)s", { name: one.name, step: points.at(-1).step, last: figure(points.at(-1).value), low: figure(low), high: figure(high) });
  }).join("; ");
}

export class Panels {
  // `jobs`: [Curves]; `arrange(hidden)` returns [{ title, keys, series, unit, range, small }]; `axes` are those offered.
  constructor(place, bar, jobs, arrange, { axes, marks = [], name = "curves" }) {
    Object.assign(this, { place, bar, jobs, arrange, axes, name, panels: [], closing: null, drawn: "" });
    const axis = get("chart-axis", "step");
    this.view = { axis: axes.includes(axis) ? axis : "step", log: get("chart-log", "off") === "on", smooth: Number(get("chart-smooth", "0")), marks, zoom: null };
    this.hidden = new Set();
    this.width = 0;
    new ResizeObserver(() => {
      if (Math.abs(place.clientWidth - this.width) < 8) return;
      this.width = place.clientWidth;
      for (const panel of this.panels) panel.chart?.resize(this.width);
    }).observe(place);
    document.addEventListener("theme", () => this.rebuild());
  }

  shape(found) {
    return JSON.stringify(found.map((panel) => [panel.title, panel.series.map((one) => one.name), Boolean(panel.small)]));
  }

  // Draws what is new into what is there; only another set of curves is drawn anew.
  show() {
    const found = this.arrange(this.hidden).filter((panel) => panel.series.some((one) => one.points.length));
    if (this.drawn !== this.shape(found) || !found.length) return this.rebuild();
    found.forEach((panel, index) => {
      Object.assign(this.panels[index], panel);
      this.panels[index].chart.update(panel.series);
      this.panels[index].box.querySelector(".plot").setAttribute("aria-label", summary(panel));
    });
    this.tell();
    if (this.table.open) this.fill();
    if (this.view.zoom) this.closer();
  }

  // Curves that are drawn stay: the next answer goes on with them.
  refused(text) {
    if (!this.panels.length) this.place.textContent = text;
  }

  rebuild() {
    const refocus = [focusIn(this.bar), focusIn(this.place)];
    for (const panel of this.panels) panel.chart.destroy();
    this.controls();
    const found = this.arrange(this.hidden).filter((panel) => panel.series.some((one) => one.points.length));
    this.drawn = this.shape(found);
    this.place.replaceChildren();
    this.panels = found.map((panel) => {
      const plot = make("div", { className: "plot", tabIndex: 0 });
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", summary(panel));
      plot.addEventListener("keydown", (event) => this.key(event));
      const box = make("div", { className: panel.small ? "panel small" : "panel" }, ...(panel.title ? [make("h3", { textContent: panel.title })] : []), plot);
      this.place.append(box);
      return { ...panel, box, chart: new Chart(plot, panel, this.view, (zoom) => this.zoom(zoom)) };
    });
    this.line = make("p", { className: "muted points" });
    this.table = make("details", { className: "fold" }, make("summary", { textContent: t("Show as table") }), make("div", { className: "table-box chart-table", tabIndex: 0 }));
    this.table.addEventListener("toggle", () => this.table.open && this.fill());
    if (found.length) this.place.append(this.line, this.table);
    else this.place.append(make("p", { className: "muted", textContent: t("No metrics yet. Curves appear with the trainer's first step.") }));
    this.tell();
    for (const again of refocus) again();
  }

  tell() {
    const shown = Math.max(0, ...this.panels.filter((panel) => !panel.small).flatMap((panel) => panel.series.map((one) => one.points.length)));
    const all = Math.max(0, ...this.jobs.map((job) => job.total));
    this.line.textContent = shown >= all ? t("All %(all)s recorded steps are shown.", { all: number(all) })
      : t("%(all)s steps in %(shown)s points: each shows its last value, and a band from the smallest to the largest.", { shown: number(shown), all: number(all) });
  }

  fill() {
    const columns = this.panels.filter((panel) => !panel.small).flatMap((panel) => panel.series);
    const [least, most] = this.view.zoom || [-Infinity, Infinity];
    const seen = columns.map((one) => one.points.filter((point) => { const at = one.curves.place(point, this.view.axis); return at >= least && at <= most; }));
    const values = seen.map((points) => new Map(points.map((point) => [point.step, point])));
    const steps = [...new Set(seen.flatMap((points) => points.map((point) => point.step)))].sort((a, b) => b - a).slice(0, TABLE_ROWS);
    const said = (point) => (point === undefined ? "–" : point.low === point.high || point.low === null ? figure(point.value) : t("%(last)s (%(low)s to %(high)s)", { last: figure(point.value), low: figure(point.low), high: figure(point.high) }));
    const head = make("thead", {}, make("tr", {}, ...[t("Step"), ...columns.map((one) => one.name)].map((text) => make("th", { scope: "col", textContent: text }))));
    const body = make("tbody", {}, ...steps.map((step) => make("tr", {}, ...[String(step), ...values.map((by) => said(by.get(step)))].map((text) => make("td", { textContent: text })))));
    this.table.querySelector(".table-box").replaceChildren(make("table", {}, head, body));
  }

  redraw() {
    for (const panel of this.panels) panel.chart.update((panel.series = panel.again()));
    if (this.table.open) this.fill();
  }

  zoom(zoom) {
    this.view.zoom = zoom;
    for (const job of this.jobs) job.lookFromAfar();
    this.redraw();
    if (this.reset) this.reset.hidden = !zoom;
    if (zoom) this.closer();
  }

  // Between few of many steps there is more to see than the points told so far.
  closer() {
    clearTimeout(this.closing);
    this.closing = setTimeout(async () => {
      const zoom = this.view.zoom;
      if (!zoom) return;
      await Promise.all(this.jobs.map((job) => job.lookCloser(...job.steps(this.view.axis, ...zoom))));
      if (this.view.zoom !== zoom) return;
      this.redraw();
      this.place.dataset.closer = "true";
    }, CLOSER_AFTER_MS);
  }

  key(event) {
    const [min, max] = this.view.zoom || this.panels[0].chart.whole;
    const size = max - min;
    const next = { "+": [min + size / 4, max - size / 4], "=": [min + size / 4, max - size / 4], "-": [min - size / 2, max + size / 2], ArrowLeft: [min - size / 4, max - size / 4], ArrowRight: [min + size / 4, max + size / 4] }[event.key];
    if (event.key !== "0" && event.key !== "Escape" && !next) return;
    event.preventDefault();
    const [least, most] = this.panels[0].chart.whole;
    const clipped = next && [Math.max(least, next[0]), Math.min(most, next[1])];
    this.zoom(!clipped || (clipped[0] <= least && clipped[1] >= most) ? null : clipped);
  }

  check(text, checked, changed) {
    const box = make("input", { type: "checkbox", checked });
    box.addEventListener("change", () => changed(box.checked));
    return make("label", { className: "check" }, box, text);
  }

  controls() {
    const { bar, view } = this;
    if (!bar) return;
    const opened = bar.querySelector("details[open]");
    const names = { step: t("by step"), time: t("by time"), elapsed: t("by time"), epoch: t("by epoch") };
    const offered = this.axes.filter((axis) => axis !== "epoch" || this.jobs.every((job) => job.epochs));
    const axis = make("select", {}, ...offered.map((one) => new Option(names[one], one)));
    axis.setAttribute("aria-label", t("X axis"));
    if (!offered.includes(view.axis)) view.axis = "step";
    axis.value = view.axis;
    axis.addEventListener("change", () => { view.axis = axis.value; view.zoom = null; put("chart-axis", view.axis); this.rebuild(); });
    const smooth = make("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: String(view.smooth) });
    smooth.setAttribute("aria-label", t("Smoothing"));
    smooth.addEventListener("change", () => { view.smooth = Number(smooth.value); put("chart-smooth", smooth.value); this.rebuild(); });
    this.reset = make("button", { type: "button", className: "button small", textContent: t("Show all"), hidden: !view.zoom });
    this.reset.addEventListener("click", () => this.zoom(null));
    const picture = make("button", { type: "button", textContent: t("Picture (PNG)") });
    picture.addEventListener("click", () => savePicture(this.panels, this.name));
    const table = make("button", { type: "button", textContent: t("Table (CSV)") });
    table.addEventListener("click", () => saveTable(this.jobs, [...new Set(this.panels.filter((panel) => !panel.small).flatMap((panel) => panel.keys))], this.name));
    const menu = make("details", { className: "menu" }, make("summary", { className: "button small", textContent: t("Save") }), make("div", { className: "items" }, picture, table));
    bar.replaceChildren(this.reset, axis, this.check(t("logarithmic"), view.log, (on) => { view.log = on; put("chart-log", on ? "on" : "off"); this.rebuild(); }), make("label", { className: "check" }, t("smooth"), smooth), ...this.choice(), menu);
    if (opened) bar.querySelector(`[data-menu="${opened.dataset.menu}"]`)?.setAttribute("open", "");
  }

  choice() {
    const keys = [...new Set(this.jobs.flatMap((job) => job.keys))].filter((key) => !key.startsWith("gpu."));
    if (keys.length < 2) return [];
    const boxes = keys.map((key) => this.check(key, !this.hidden.has(key), (on) => { if (on) this.hidden.delete(key); else this.hidden.add(key); this.rebuild(); }));
    const together = this.check(t("in one chart"), get("chart-together", "off") === "on", (on) => { put("chart-together", on ? "on" : "off"); this.rebuild(); });
    const menu = make("details", { className: "menu choice" }, make("summary", { className: "button small", textContent: t("Numbers") }), make("div", { className: "items" }, together, make("hr"), ...boxes));
    menu.dataset.menu = "choice";
    return [menu];
  }
}

export function together() {
  return get("chart-together", "off") === "on";
}
