// Users, tokens and secrets: dialogs that are about one row, and secrets that are shown once.
import { begin, showRow } from "../common/edits.js";

function aboutRow(dialog, opener) {
  const form = dialog.querySelector("form");
  form.dataset.api = form.dataset.rowApi.replace("{id}", encodeURIComponent(opener.dataset.id));
  form.dataset.row = opener.dataset.id;
  dialog.querySelector("[data-row-name]").textContent = opener.dataset.name;
  showRow(form, opener);
  if (form.matches("[data-edits]")) begin(form);
}

function showOnce(id, text, until) {
  const dialog = document.getElementById(id);
  dialog.querySelector("[data-once-text]").textContent = text;
  const place = dialog.querySelector("[data-once-until]");
  if (place && until) place.dateTime = until;
  dialog.showModal();
}

document.addEventListener("opened", (event) => {
  const { opener } = event.detail;
  if (event.target.matches("[data-about-row]")) aboutRow(event.target, opener);
  const given = event.target.matches("[data-fresh]") && opener.dataset.fills && JSON.parse(opener.dataset.fills);
  for (const [name, value] of Object.entries(given || {})) event.target.querySelector("form").elements.namedItem(name).value = value;
}, true);

// What was typed or shown does not stay in the page behind a closed dialog.
document.addEventListener("close", (event) => {
  if (event.target.matches("[data-once]")) event.target.querySelector("[data-once-text]").textContent = "";
  for (const form of event.target.querySelectorAll("form")) form.reset();
  for (const place of event.target.querySelectorAll("[data-problem]")) place.replaceChildren();
  for (const choice of event.target.querySelectorAll("[data-password-choice]")) whichPassword(choice);
}, true);

document.addEventListener("link-made", (event) => {
  const { link, link_expires_at: first, expires_at: later } = event.detail;
  if (link) showOnce("the-link", link, first || later);
});

document.addEventListener("token-made", (event) => showOnce("the-token", event.detail.token));

function whichPassword(choice) {
  const given = choice.querySelector("[value=given]").checked;
  const fields = choice.parentElement;
  fields.querySelector("[data-for-link]").hidden = given;
  fields.querySelector("[data-for-given]").hidden = !given;
  fields.querySelector("[data-for-given] input").disabled = !given;
}

document.addEventListener("change", (event) => {
  const choice = event.target.closest("[data-password-choice]");
  if (choice) whichPassword(choice);
});

document.addEventListener("click", (event) => {
  const preset = event.target.closest("[data-preset]");
  if (!preset) return;
  const names = new Set(preset.dataset.preset.split(" "));
  for (const box of preset.closest("form").querySelectorAll("[name=permissions]")) box.checked = names.has(box.value);
});
