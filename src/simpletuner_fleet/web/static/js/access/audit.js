// The audit log: times typed in the reader's own zone, and what the verification found.
import { t, tn } from "../common/words.js";

const form = document.querySelector("form[data-local-times]");

function local(stamp) {
  const at = new Date(stamp);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

for (const field of form.querySelectorAll("[data-time-of]")) field.value = local(form.elements.namedItem(field.dataset.timeOf).value);

form.addEventListener("submit", () => {
  for (const field of form.querySelectorAll("[data-time-of]")) {
    form.elements.namedItem(field.dataset.timeOf).value = field.value ? new Date(field.value).toISOString() : "";
  }
  for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
});
addEventListener("pageshow", () => { for (const field of form.elements) field.disabled = false; });

function told(problem) {
  const { code, params, what } = problem;
  if (code === "misplaced") return t("It follows entry %(after)s.", params);
  if (code === "missing") return t("Entries %(first)s to %(last)s are missing.", params);
  if (code === "changed") return t("It does not match its hash: it was altered.");
  if (code === "contradicted") return t("%(who)s recorded a different entry here.", params);
  if (code === "cut_off") return t("The log ends at %(last)s, but %(who)s has seen entry %(seq)s: it was truncated.", params);
  if (code === "emptied") return t("Entries up to %(last)s are empty, and no entry says that the log was cut there.", params);
  if (code === "cut_changed") return t("The hashes of the empty entries up to %(last)s are not those with which the log was cut.", params);
  return what;
}

function line(tag, text, style) {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = style || "";
  return made;
}

document.addEventListener("verified", (event) => {
  const { valid, checked, problems, emptied } = event.detail;
  const place = document.getElementById("verdict");
  const box = document.createElement("div");
  box.className = valid ? "note is-ok" : "note is-bad";
  const body = document.createElement("div");
  body.append(line("strong", valid ? t("The log is intact.") : t("The log is not intact.")), " ",
    line("span", tn("%(n)s entry was checked.", "%(n)s entries were checked.", checked)));
  if (emptied) body.append(" ", line("span", t("From entry %(seq)s on: older ones have their hash alone.", { seq: emptied + 1 })));
  const list = document.createElement("ul");
  list.className = "more";
  for (const problem of problems) list.append(line("li", t("Entry %(seq)s: %(what)s", { seq: problem.seq, what: told(problem) })));
  if (problems.length) body.append(list);
  box.append(body);
  place.replaceChildren(box);
  place.hidden = false;
});
