// Forms that change what exists: data-edits, with an id. What somebody else changes meanwhile is not written over unseen.
// A form is compared with what the server shows now, whenever the page is fetched again and before it is saved: fields
// that were not touched take the new values, what was typed stays, and the form says which fields have changed.
import { fetchPage, isOurs } from "../frame/live.js";
import { t } from "./words.js";

// What the server had when each form last took it over, by the form's id.
const known = new Map();
const LONGEST_LOOK_MS = 5_000;
const forms = () => [...document.querySelectorAll("form[data-edits]")];

// A time of the browser's own zone, as a field of type datetime-local has it: with its seconds, if it has any.
export function localTime(seconds) {
  const moment = new Date(Number(seconds) * 1000);
  return seconds ? new Date(moment - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, moment.getUTCSeconds() ? 19 : 16) : "";
}

// The form's fields by what they are about; radio buttons of one name are one.
function controls(form) {
  const all = new Map();
  for (const field of form.elements) {
    if (!field.name) continue;
    const about = field.type === "checkbox" ? `${field.name}=${field.value}` : field.dataset.path || field.name;
    all.set(about, [...(all.get(about) || []), field]);
  }
  return all;
}

function inOrder(json) {
  return JSON.stringify(Object.fromEntries(Object.entries(JSON.parse(json || "{}")).sort()));
}

// What a field holds, or what the server gave it.
function read([field, ...others], given) {
  if (field.type === "radio") return [field, ...others].find((one) => (given ? one.defaultChecked : one.checked))?.value ?? "";
  if (field.type === "checkbox") return String(given ? field.defaultChecked : field.checked);
  if (field instanceof HTMLSelectElement && given) return ([...field.options].find((one) => one.defaultSelected) || field.options[0])?.value ?? "";
  if (field.dataset.type === "json") return inOrder(field.value);
  if (field.dataset.moment !== undefined && given) return localTime(field.dataset.moment);
  return (given && "defaultValue" in field ? field.defaultValue : field.value).replaceAll("\r\n", "\n");
}

function snapshot(form, given = true) {
  return new Map([...controls(form)].map(([about, fields]) => [about, read(fields, given)]));
}

function write([field, ...others], value) {
  if (field.type === "radio") for (const one of [field, ...others]) one.checked = one.value === value;
  else if (field.type === "checkbox") field.checked = value === "true";
  else field.value = value;
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

// What a reset goes back to; what the field holds stays.
function setGiven(fields, value) {
  const [[field], held] = [fields, read(fields, false)];
  if (field.type === "radio") for (const one of fields) one.defaultChecked = one.value === value;
  else if (field.type === "checkbox") field.defaultChecked = value === "true";
  else if (field instanceof HTMLSelectElement) for (const one of field.options) one.defaultSelected = one.value === value;
  else if (field.type !== "hidden") field.defaultValue = value;
  if (field.dataset.moment !== undefined) field.dataset.moment = value && new Date(value).getTime() / 1000;
  if (read(fields, false) !== held) write(fields, held);
}

// Of a list of names and values both may have changed different ones.
function joined(before, mine, theirs) {
  const [old, own, all] = [before, mine, theirs].map((text) => JSON.parse(text));
  for (const name of Object.keys(old)) if (!(name in own)) delete all[name];
  for (const [name, value] of Object.entries(own)) if (value !== old[name]) all[name] = value;
  return JSON.stringify(all);
}

function nameOf([field, ...others]) {
  const label = (!others.length && field.labels?.[0]) || field.closest("fieldset")?.querySelector("legend");
  return label?.textContent.trim().replace(/\s+/g, " ") || field.name;
}

function takeOver(form, fresh) {
  const [before, now, others] = [known.get(form.id) || snapshot(fresh), snapshot(fresh), controls(fresh)];
  known.set(form.id, now);
  const changed = [];
  for (const [about, fields] of controls(form)) {
    if (!now.has(about) || now.get(about) === before.get(about)) continue;
    const [mine, theirs, [field]] = [read(fields, false), now.get(about), fields];
    if (field instanceof HTMLSelectElement) {
      const missing = [...others.get(about)[0].options].filter((one) => ![...field.options].some((known) => known.value === one.value));
      field.append(...missing.map((one) => document.importNode(one, true)));
    }
    setGiven(fields, theirs);
    if (mine === theirs) continue;
    if (mine === before.get(about)) write(fields, theirs);
    else if (field.dataset.type === "json") write(fields, joined(before.get(about), mine, theirs));
    changed.push(nameOf(fields));
  }
  return changed;
}

// A dialog about one row of a list has that row's values, which stand at the button that opens it.
export function showRow(form, opener) {
  if (!opener.dataset.role) return;
  for (const one of form.querySelectorAll("input[name=role]")) one.defaultChecked = one.checked = one.value === opener.dataset.role;
}

// Begins anew with the values that the form has been given.
export function begin(form) {
  known.set(form.id, snapshot(form));
}

function counterpart(form, page) {
  const fresh = page.getElementById(form.id);
  if (!fresh || form.dataset.rowApi === undefined) return fresh;
  const dialog = form.closest("dialog");
  const opener = dialog.open && page.querySelector(`[data-opens="${dialog.id}"][data-id="${CSS.escape(form.dataset.row)}"]`);
  if (opener) showRow(fresh, opener);
  return opener ? fresh : null;
}

function isTouched(form) {
  const given = known.get(form.id);
  return Boolean(form.closest("dialog")?.open || (given && [...snapshot(form, false)].some(([about, value]) => given.get(about) !== value)));
}

// Returns what to say of a form after the page was fetched again; null where nobody needs to know.
function changedMeanwhile(form, page) {
  const [fresh, touched] = [counterpart(form, page), isTouched(form)];
  const changed = fresh ? takeOver(form, fresh) : [];
  return changed.length && touched ? {
    title: t("This has changed since you opened it."),
    detail: t("Changed: %(fields)s.", { fields: [...new Set(changed)].join(", ") }),
    next: t("What you had not touched shows the new values, and what you typed stays. Check it, then save again."),
  } : null;
}

// The page as the server has it now; null where that cannot be had in time.
async function pageNow() {
  try {
    const answer = await fetchPage(AbortSignal.timeout(LONGEST_LOOK_MS));
    const text = answer.ok && !answer.redirected ? await answer.text() : "";
    return isOurs(text) ? new DOMParser().parseFromString(text, "text/html") : null;
  } catch {
    return null;
  }
}

// Throws what has changed since somebody began to edit, and returns whether they still want to save: who closes the dialog
// meanwhile does not. What the page cannot show any more, the server refuses by itself.
export async function maySave(form, closed) {
  const page = await pageNow();
  if (closed.aborted) return false;
  const problem = page && changedMeanwhile(form, page);
  if (problem) throw problem;
  return true;
}

// What was saved is what the form begins with from now on; what is a secret does not stay in the page.
export function saved(form) {
  const given = known.get(form.id) || snapshot(form);
  for (const [about, fields] of controls(form)) {
    if (fields[0].type === "password" || fields[0].dataset.skipEmpty !== undefined) continue;
    given.set(about, read(fields, false));
    setGiven(fields, given.get(about));
  }
  known.set(form.id, given);
}

for (const field of document.querySelectorAll("input[data-moment]")) field.value = field.defaultValue = localTime(field.dataset.moment);
for (const form of forms()) begin(form);
document.addEventListener("close", (event) => {
  for (const form of event.target.querySelectorAll("form[data-edits]")) form.reset();
}, true);

export function eachEdited(page, say) {
  for (const form of forms()) {
    const problem = changedMeanwhile(form, page);
    if (problem) say(form, problem);
  }
}
