// Forms and buttons that speak to the JSON API: data-api="POST /api/…".
//   data-then   refresh | go:/path/{field} | leave | event:name | close  (what follows success; several with a blank between)
//   data-body   JSON that is sent as it is; a form adds its fields by name: dots nest, data-type says int, float, bool,
//               amount (money, sent in millionths), moment (a local time, sent with its zone), json, lines, pairs (key=value, by line or comma), pair-lines (by line), item (a checkbox of a list), skip-empty; data-empty="null" sends null.
//               data-path='["a", "b.c"]' nests by these names instead, whatever stands in them.
//               A field with data-in-path fills the {name} of data-api instead.
// A refusal is shown in the nearest [data-problem], or as a toast, and the field it names is marked.
import { leave, refresh } from "../frame/live.js";
import { hasEnded, isTouched, loggedInAgain, loginAddress, loginLink, lookWhoIsHere, sessionEnded, whyEnded } from "../frame/session.js";
import { ofCaller } from "./caller.js";
import { eachEdited, maySave, saved } from "./edits.js";
import { inOurFormat, said } from "./refusals.js";
import { toast } from "./toast.js";
import { t } from "./words.js";

// Returns a link to what mends the problem, where the console knows it.
function wayOut(problem) {
  if (problem.status === 401) return loginLink();
  if (problem.code !== "login_not_fresh") return null;
  const link = document.createElement("a");
  link.href = loginAddress();
  link.textContent = t("Log in again");
  return link;
}

// What makes a job is carried out once under one key, which the same request keeps until it is answered: an answer that
// got lost does not make two jobs of one.
const MAKES_A_JOB = /^\/api\/(queue\/submit|jobs\/[^/]+\/retry)$/;
const keys = new Map();

function keyFor(request) {
  if (!keys.has(request)) keys.set(request, [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
  return keys.get(request);
}

// What a page asks for by itself, or while somebody types.
const ASKED_BY_ITSELF = /^(GET |POST \/train\/check$|POST \/api\/matching\/count$)/;

export async function call(method, path, body) {
  if (hasEnded() && ASKED_BY_ITSELF.test(`${method} ${path}`)) throw whyEnded();
  const init = { method, headers: { accept: "application/json", ...ofCaller } };
  if (body !== undefined) {
    init.headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const request = `${path} ${init.body}`;
  if (MAKES_A_JOB.test(path)) init.headers["idempotency-key"] = keyFor(request);
  let [answer, told] = [null, null];
  try {
    answer = await fetch(path, init);
    if ((answer.headers.get("content-type") || "").includes("json")) told = await answer.json();
  } catch {
    throw { title: t("The server did not respond."), detail: t("The connection is lost, or the server is restarting."), next: t("Try again in a moment.") };
  }
  if (!path.startsWith("/api/login")) {
    if (answer.status === 401) sessionEnded(told);
    else if (answer.ok) loggedInAgain();
    else if (told?.code === "page_of_another" && isTouched()) lookWhoIsHere();
  }
  // What is not in our own format comes from something in between, and has no words for people.
  if (!answer.ok) throw inOurFormat(told) ? told : { title: t("The server refused."), detail: String(answer.status) };
  keys.delete(request);
  return told;
}

// Money is sent in whole millionths, made from the digits themselves: no float is in between.
export function millionths(text) {
  const digits = /^(\d+)(?:\.(\d{1,6}))?$/.exec(text.trim());
  return digits ? Number(digits[1]) * 1_000_000 + Number((digits[2] || "").padEnd(6, "0")) : text;
}

// A time of the browser's own zone, as a field of type datetime-local has it, with its zone for the server.
export function zoned(text) {
  const moment = text ? new Date(text) : null;
  return moment && !Number.isNaN(moment.getTime()) ? moment.toISOString() : text || undefined;
}

function typed(field) {
  const { type } = field.dataset;
  if (field.type === "checkbox") return field.checked;
  const text = field.value;
  if (text === "" && field.dataset.empty === "null") return null;
  if (text === "" && (type || field.dataset.skipEmpty !== undefined)) return type === "lines" || type === "words" ? [] : type === "pairs" || type === "pair-lines" ? {} : undefined;
  if (type === "amount" || (type === "ceiling" && field.form.elements.kind.value.startsWith("money"))) return millionths(text);
  // What is no number goes as it is: the server says so at the field. NaN would be sent as nothing at all.
  if (type === "int" || type === "ceiling" || type === "float") return Number.isNaN(Number(text)) ? text : Number(text);
  if (type === "moment") return zoned(text);
  if (type === "bool") return text === "true";
  if (type === "json") return JSON.parse(text);
  if (type === "words") return text.split(/[\s,]+/).filter(Boolean);
  if (type === "lines") return text.split(/\n/).map((line) => line.trim()).filter(Boolean);
  if (type === "pairs" || type === "pair-lines") return Object.fromEntries(text.split(type === "pairs" ? /\n|,/ : /\n/).map((line) => line.trim()).filter(Boolean).map((line) => {
    const cut = line.indexOf("=");
    return cut < 0 ? [line, ""] : [line.slice(0, cut).trim(), line.slice(cut + 1).trim()];
  }));
  return text;
}

export function formBody(form) {
  const body = JSON.parse(form.dataset.body || "{}");
  for (const field of form.elements) {
    if (!field.name || field.disabled || field.dataset.inPath !== undefined || (field.type === "radio" && !field.checked)) continue;
    if (field.dataset.type === "item") {
      body[field.name] = [...(body[field.name] || []), ...(field.checked ? [field.value] : [])];
      continue;
    }
    let value;
    try {
      value = typed(field);
    } catch {
      throw { title: t("This is not JSON."), detail: field.labels?.[0]?.textContent?.trim() || field.name, path: `$.${field.name}` };
    }
    if (value === undefined) continue;
    const parts = field.dataset.path ? JSON.parse(field.dataset.path) : field.name.split(".");
    let at = body;
    for (const name of parts.slice(0, -1)) at = at[name] ??= {};
    at[parts.at(-1)] = value;
  }
  return body;
}

export function showProblem(place, problem) {
  place.replaceChildren();
  if (!problem) return;
  const box = document.createElement("div");
  box.className = "problem";
  box.setAttribute("role", "alert");
  for (const [tag, text, style] of [["strong", problem.title, ""], ["span", problem.detail, ""], ["span", problem.next, "muted"], ["span", problem.code, "code"]]) {
    if (!text) continue;
    const line = document.createElement(tag);
    line.textContent = text;
    line.className = style;
    box.append(line);
  }
  const link = wayOut(problem);
  if (link) box.append(link);
  place.append(box);
}

function mark(form, problem) {
  for (const said of form.querySelectorAll(".field-error")) said.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
  const refused = problem?.errors?.length ? problem.errors : problem?.path ? [problem] : [];
  const marked = refused.map((one) => markField(form, one)).filter(Boolean);
  marked[0]?.focus();
}

// What is wrong stands at the field that it is about.
function markField(form, { path, message, detail }) {
  const name = (path || "").replace(/^\$\.?/, "").replace(/\[.*$/, "");
  const field = name && form.elements.namedItem?.(name);
  if (!(field instanceof HTMLElement)) return null;
  const said = Object.assign(document.createElement("span"), { className: "field-error bad-text", id: `wrong-${name}`, textContent: message || detail || "" });
  field.after(said);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", said.id);
  return field;
}

function follow(then, told, element) {
  for (const step of (then || "refresh").split(" ")) {
    const [what, where] = [step.split(":")[0], step.slice(step.indexOf(":") + 1)];
    if (what === "refresh") refresh();
    if (what === "close") element.closest("dialog")?.close();
    if (what === "go") location.assign(where.replace(/\{(\w+)\}/g, (whole, name) => encodeURIComponent(told?.[name] ?? "")));
    if (what === "leave") location.assign(told?.next || "/login");
    if (what === "event") element.dispatchEvent(new CustomEvent(where, { bubbles: true, detail: told }));
  }
}

function address(element) {
  const [method, path] = element.dataset.api.split(" ");
  return [method, path.replace(/\{(\w+)\}/g, (whole, name) => encodeURIComponent(element.elements?.namedItem(name)?.value ?? ""))];
}

const acting = new WeakSet();
const LEAVES_MS = 10_000;

// A button that is disabled loses the focus, and whoever works by keyboard their place on the page: it only says that it is.
function busy(button, yes) {
  for (const name of ["aria-busy", "aria-disabled"]) yes ? button?.setAttribute(name, "true") : button?.removeAttribute(name);
}

function free(element, button) {
  acting.delete(element);
  busy(button, false);
}

// A dialog that is closed while its answer is awaited may be about something else when it is opened again: that answer
// touches it no more, and what it has not sent by then is not sent.
function untilClosed(element, button) {
  const [dialog, closed] = [element.closest("dialog"), new AbortController()];
  const close = () => {
    closed.abort();
    free(element, button);
  };
  dialog?.addEventListener("close", close, { once: true });
  const end = () => {
    dialog?.removeEventListener("close", close);
    if (!closed.signal.aborted) free(element, button);
  };
  return [closed.signal, end];
}

function finish(element, place) {
  if (place) showProblem(place, null);
  if (!element.matches("form")) return;
  mark(element, null);
  if (element.matches("[data-edits]")) saved(element);
  if (element.dataset.clears !== undefined) element.reset();
  element.closest("dialog")?.close();
}

// Who presses twice means what stood there at first, not what has moved to its place since.
const [TWICE_MS, TWICE_PX] = [700, 8];
let pressed = null;

function isMeantFor(button, { clientX, clientY, timeStamp }) {
  const [before, what] = [pressed, `${button.dataset.api} ${button.dataset.body}`];
  const soon = before && timeStamp - before.timeStamp < TWICE_MS && Math.hypot(clientX - before.clientX, clientY - before.clientY) < TWICE_PX;
  const meant = !soon || before.what === what;
  pressed = { clientX, clientY, timeStamp, what: meant ? what : before.what };
  return meant;
}

// Whoever goes to another button by keyboard means that one; presses by keyboard are all at one point.
document.addEventListener("keydown", ({ key }) => { if (key !== "Enter" && key !== " ") pressed = null; }, true);

// A button that is part of a region may be drawn anew while its answer is awaited: that it acts is known here.
async function act(element, body) {
  if (acting.has(element)) return;
  acting.add(element);
  const [method, path] = address(element);
  const button = element.matches("form") ? element.querySelector("button:not([type=button])") : element;
  const place = element.querySelector?.("[data-problem]") || element.closest("[data-problems]")?.querySelector("[data-problem]");
  const leaves = /(^| )(go:|leave)/.test(element.dataset.then || "");
  busy(button, true);
  if (leaves) leave(true);
  const [closed, end] = untilClosed(element, button);
  let gone = false;
  try {
    if (element.matches("form[data-edits]") && !(await maySave(element, closed))) return;
    const told = await call(method, path, method === "GET" || method === "DELETE" ? undefined : body());
    if (!closed.aborted) finish(element, place);
    if (element.dataset.said) toast(element.dataset.said);
    follow(element.dataset.then, told, element);
    gone = leaves;
  } catch (problem) {
    if (leaves) leave(false);
    if (!(problem && problem.title)) throw problem;
    if (place && !closed.aborted) showProblem(place, problem);
    else toast(said(problem), true);
    if (element.matches("form") && !closed.aborted) mark(element, problem);
  } finally {
    // Until the next page is here this one can still be pressed, and would do once more what is done.
    if (gone) setTimeout(end, LEAVES_MS);
    else end();
  }
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-api]")) return;
  event.preventDefault();
  act(event.target, () => formBody(event.target));
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-api]");
  if (button && isMeantFor(button, event)) act(button, () => JSON.parse(button.dataset.body || "{}"));
});

document.addEventListener("refreshed", ({ detail }) => eachEdited(detail.page, (form, problem) => showProblem(form.querySelector("[data-problem]"), problem)));
