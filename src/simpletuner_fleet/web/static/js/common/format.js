// Times and figures in the reader's own customs. The server wrote plain text; this makes it local.
import { now } from "../frame/clock.js";
import { lang } from "./words.js";

const relative = new Intl.RelativeTimeFormat(lang, { numeric: "auto", style: "short" });
const clock = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "short" });
const moment = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium" });
const whole = new Intl.DateTimeFormat(lang, { dateStyle: "full", timeStyle: "long" });
const STEPS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const UNITS = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte", "petabyte"];

export function ago(at) {
  const seconds = (at - now()) / 1000;
  for (const [unit, size] of STEPS) {
    if (Math.abs(seconds) >= size || unit === "second") return relative.format(Math.round(seconds / size), unit);
  }
  return "";
}

export function clockTime(at) {
  return clock.format(at);
}

export function number(value, digits) {
  return new Intl.NumberFormat(lang, digits === undefined ? { maximumFractionDigits: 2 } : { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);
}

export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  return new Intl.NumberFormat(lang, { maximumSignificantDigits: 4 }).format(value);
}

export function bytes(value) {
  let at = 0;
  while (Math.abs(value) >= 1000 && at < UNITS.length - 1) { value /= 1000; at += 1; }
  if (!at) return `${new Intl.NumberFormat(lang, { maximumFractionDigits: 0 }).format(value)} B`; // "25 byte" is what Intl says
  return new Intl.NumberFormat(lang, { style: "unit", unit: UNITS[at], unitDisplay: "short", maximumFractionDigits: 1 }).format(value);
}

function part(value, unit) {
  return new Intl.NumberFormat(lang, { style: "unit", unit, unitDisplay: "narrow", maximumFractionDigits: 0 }).format(value);
}

export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return part(s, "second");
  if (s < 3600) return `${part(Math.floor(s / 60), "minute")} ${part(s % 60, "second")}`;
  if (s < 86400) return `${part(Math.floor(s / 3600), "hour")} ${part(Math.floor((s % 3600) / 60), "minute")}`;
  return `${part(Math.floor(s / 86400), "day")} ${part(Math.floor((s % 86400) / 3600), "hour")}`;
}

function showTime(element) {
  const at = Date.parse(element.dateTime);
  if (Number.isNaN(at)) return;
  const style = element.dataset.time;
  const text = style === "clock" ? clock.format(at) : style === "date" ? day.format(at)
    : style === "moment" ? moment.format(at)
    : style === "hour" ? new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit" }).format(at)
    : style === "elapsed" ? duration((now() - at) / 1000) : ago(at);
  if (element.textContent !== text) element.textContent = text;
  const title = whole.format(at);
  if (element.title !== title) element.title = title;
}

function showNumber(element) {
  const value = Number(element.value);
  if (Number.isNaN(value)) return;
  const style = element.dataset.number;
  const text = style === "bytes" ? bytes(value) : style === "duration" ? duration(value)
    : style === "percent" ? new Intl.NumberFormat(lang, { style: "percent", maximumFractionDigits: 0 }).format(value)
    : style === "figure" ? figure(value)
    : style === "" || style === undefined ? number(value) : number(value, Number(style));
  // Written without need, it would be noticed as a change, and written again for ever.
  if (element.textContent !== text) element.textContent = text;
}

export function formatAll(root = document) {
  root.querySelectorAll("time[data-time]").forEach(showTime);
  root.querySelectorAll("data[data-number]").forEach(showNumber);
}

formatAll();
new MutationObserver((changes) => {
  for (const change of changes) {
    const at = change.target.nodeType === 1 ? change.target : change.target.parentElement;
    if (change.type === "attributes") change.target.matches("time") ? showTime(change.target) : change.target.matches("data") && showNumber(change.target);
    else if (at && change.addedNodes.length) formatAll(at.matches("time, data") ? at.parentElement : at);
  }
}).observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["datetime", "value"] });
// A morph may write the server's plain text back into a node that is already there, which adds no node.
document.addEventListener("refreshed", () => formatAll());
setInterval(() => document.hidden || document.querySelectorAll("time[data-time=relative], time[data-time=elapsed]").forEach(showTime), 1000);
