// What a chart shows, to take along: a picture with its title and legend, or the points as a table.
import { call } from "../common/actions.js";
import { colour } from "./charts.js";

const MOST_POINTS = 5000;
const FIELDS = ["job", "key", "step", "at", "min", "max", "last"];
const LINE = 20;
const MARGIN = 12;

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A cell that a spreadsheet would run as a formula stays text.
function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const tame = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(tame) ? `"${tame.replaceAll('"', '""')}"` : tame;
}

export async function saveTable(jobs, keys, name) {
  const rows = [FIELDS.join(",")];
  for (const curves of jobs) {
    const query = new URLSearchParams([["points", String(MOST_POINTS)], ...keys.map((key) => ["key", key])]);
    const told = await call("GET", `/api/jobs/${encodeURIComponent(curves.job)}/metrics?${query}`);
    for (const [key, points] of Object.entries(told.series)) {
      for (const point of points) rows.push([curves.job, key, point.step, point.at, point.min, point.max, point.last].map(cell).join(","));
    }
  }
  save(new Blob([`${rows.join("\n")}\n`], { type: "text/csv" }), `${name}.csv`);
}

export function savePicture(panels, name) {
  const style = getComputedStyle(document.documentElement);
  const scale = devicePixelRatio;
  const shown = panels.filter((panel) => panel.chart);
  const width = Math.max(...shown.map((panel) => panel.chart.plot.ctx.canvas.width)) + 2 * MARGIN * scale;
  const heights = shown.map((panel) => panel.chart.plot.ctx.canvas.height + (2 + panel.series.length) * LINE * scale);
  const canvas = Object.assign(document.createElement("canvas"), { width, height: heights.reduce((sum, one) => sum + one, 2 * MARGIN * scale) });
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = style.getPropertyValue("--surface").trim();
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  let top = MARGIN * scale;
  for (const panel of shown) {
    ctx.font = `600 ${14 * scale}px system-ui`;
    ctx.fillStyle = style.getPropertyValue("--text").trim();
    top += LINE * scale;
    ctx.fillText(panel.title || panel.keys.join(", "), MARGIN * scale, top - 6 * scale);
    ctx.drawImage(panel.chart.plot.ctx.canvas, MARGIN * scale, top);
    top += panel.chart.plot.ctx.canvas.height;
    ctx.font = `${12 * scale}px system-ui`;
    panel.series.forEach((one, index) => {
      top += LINE * scale;
      ctx.fillStyle = colour(index);
      ctx.fillRect(MARGIN * scale, top - 12 * scale, 14 * scale, 4 * scale);
      ctx.fillText(one.name, (MARGIN + 22) * scale, top - 6 * scale);
    });
    top += LINE * scale;
  }
  canvas.toBlob((blob) => save(blob, `${name}.png`));
}
