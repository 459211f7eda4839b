// The form over a trainer's settings. It changes only what somebody changes in it; all other keys stay as they are.
import { isPlain, shown, typed } from "../common/exact.js";
import { choicesOf, describe, optionsOf } from "./train-options.js";
import { t } from "../common/words.js";

const form = document.getElementById("form");
const others = document.getElementById("others");
const none = document.getElementById("others-none");
const bare = (key) => key.replace(/^--/, "");

// The key as this config spells it: with or without dashes, by its present or a former name.
function keyIn(settings, names) {
  for (const name of names) for (const key of [name, `--${name}`]) if (Object.hasOwn(settings, key)) return key;
  return names[0];
}

function read(field) {
  const text = field.value;
  if (field.dataset.kind === "lines") return text.trim() === "" ? undefined : text.split("\n").filter((line, at, all) => line !== "" || at < all.length - 1);
  if (text.trim() === "") return undefined;
  if (field.dataset.kind === "number") return typed(text.trim());
  if (field.dataset.kind === "any") return field.dataset.was === "string" ? text : typed(text);
  return text;
}

function put(field, value) {
  const lines = field.dataset.kind === "lines";
  const text = value === undefined || value === null ? "" : lines && Array.isArray(value) ? value.map(shown).join("\n") : shown(value);
  if (field.matches("select") && text && ![...field.options].some((option) => option.value === text)) field.add(new Option(text, text));
  if (document.activeElement !== field && field.value !== text) field.value = text;
  field.readOnly = value !== undefined && !isPlain(value) && !(lines && Array.isArray(value));
}

// A setting that the trainer knows has a field of its kind: a list where it takes one of a few values.
function control(option, value) {
  const choices = choicesOf(option);
  if (!choices.length || !choices.includes(shown(value))) return document.createElement("input");
  const select = document.createElement("select");
  select.append(...choices.map((choice) => new Option(choice, choice)));
  return select;
}

function row(key, value, option, changed) {
  const place = document.createElement("div");
  const label = document.createElement("label");
  const id = `other-${key}`;
  place.className = "field";
  label.htmlFor = id;
  label.className = "mono";
  label.textContent = key;
  place.append(label);
  if (!isPlain(value)) {
    const told = document.createElement("input");
    told.id = id;
    told.className = "code";
    told.readOnly = true;
    told.value = JSON.stringify(value);
    told.dataset.path = `settings.${bare(key)}`;
    place.append(told);
    return place;
  }
  const line = document.createElement("div");
  line.className = "row nowrap-row";
  const input = control(option, value);
  Object.assign(input, { id, className: "code", autocomplete: "off", spellcheck: false });
  input.dataset.kind = "any";
  input.dataset.other = key;
  input.dataset.was = typeof value;
  input.dataset.path = `settings.${bare(key)}`;
  const gone = document.createElement("button");
  gone.type = "button";
  gone.className = "button quiet icon-only";
  gone.textContent = "✕";
  gone.setAttribute("aria-label", t("Remove %(key)s", { key }));
  gone.addEventListener("click", () => changed((settings) => { delete settings[key]; }));
  line.append(input, gone);
  place.append(line);
  if (option) {
    const hint = Object.assign(document.createElement("p"), { className: "hint", id: `${id}-hint` });
    describe(hint, option);
    input.setAttribute("aria-describedby", hint.id);
    place.append(hint);
  }
  return place;
}

function proposals(field) {
  const list = document.createElement("datalist");
  list.id = `${field.id}-list`;
  field.setAttribute("list", list.id);
  field.after(list);
  return list;
}

// What the trainer itself says of the fields that are always there: its own choices instead of ours, its help and bounds.
function useOptions(options) {
  for (const field of form.querySelectorAll("[data-keys]")) {
    const option = options(field.closest("[data-trainer]").dataset.trainer).get(field.dataset.keys.split(" ")[0]);
    const said = option && field.closest(".field").querySelector("[data-told]");
    if (said) describe(said, option, []);
    if (said?.textContent) said.hidden = false;
    const choices = choicesOf(option);
    if (!choices.length) continue;
    const list = field.matches("select") ? field : field.list ?? proposals(field);
    const blank = field.matches("select") ? [field.options[0]] : [];
    list.replaceChildren(...blank, ...choices.map((choice) => new Option(choice, choice)));
  }
}

export function setUp(known, told, changed) {
  const options = optionsOf(told);
  const [said, names, values] = ["new-said", "new-key-list", "new-value-list"].map((id) => document.getElementById(id));
  let current = options("");
  useOptions(options);
  form.addEventListener("input", (event) => {
    const field = event.target;
    if (field.dataset.keys) {
      changed((settings) => {
        const key = keyIn(settings, field.dataset.keys.split(" "));
        const value = read(field);
        if (value === undefined) delete settings[key];
        else settings[key] = value;
      });
    } else if (field.dataset.other) {
      changed((settings) => { settings[field.dataset.other] = read(field) ?? ""; });
    }
  });
  const [key, value] = [document.getElementById("new-key"), document.getElementById("new-value")];
  const add = () => {
    const name = key.value.trim();
    if (!name) return key.focus();
    const given = typed(value.value);
    key.value = value.value = said.textContent = "";
    changed((settings) => { settings[keyIn(settings, [bare(name)])] = given; });
    key.focus();
  };
  document.getElementById("add-setting").addEventListener("click", add);
  key.addEventListener("input", () => {
    const option = current.get(bare(key.value.trim()));
    if (option) describe(said, option);
    else said.textContent = "";
    values.replaceChildren(...choicesOf(option).map((choice) => new Option(choice, choice)));
  });
  for (const field of [key, value]) field.addEventListener("keydown", (event) => { if (event.key === "Enter") add(); });

  return function show(trainer, settings) {
    for (const part of form.querySelectorAll("[data-trainer]")) part.hidden = part.dataset.trainer !== trainer;
    if (current !== options(trainer)) {
      current = options(trainer);
      names.replaceChildren(...[...current.keys()].map((name) => new Option("", name)));
    }
    for (const field of form.querySelectorAll(`[data-trainer="${CSS.escape(trainer)}"] [data-keys]`)) {
      const own = keyIn(settings, field.dataset.keys.split(" "));
      field.dataset.path = `settings.${bare(own)}`;
      put(field, settings[own]);
    }
    const rest = Object.keys(settings).filter((name) => !(known[trainer] || []).includes(bare(name)));
    const there = [...others.children].map((place) => place.querySelector("label").textContent);
    const same = there.length === rest.length && rest.every((name, at) => name === there[at]);
    if (!same) others.replaceChildren(...rest.map((name) => row(name, settings[name], current.get(bare(name)), changed)));
    for (const field of others.querySelectorAll("[data-other]")) put(field, settings[field.dataset.other]);
    none.hidden = rest.length > 0;
  };
}
