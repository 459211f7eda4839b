// A trainer's own options, as a worker reported them: what kind of value each takes, and which ones.
import { shown } from "../common/exact.js";
import { t } from "../common/words.js";

const NONE = new Map();
const KINDS = {
  text: () => t("Text"),
  int: () => t("A whole number"),
  float: () => t("A number"),
  switch: () => t("true or false"),
  other: () => t("Any value"),
};

// Returns the options of a trainer by each of their names.
export function optionsOf(told) {
  const by_trainer = new Map(Object.entries(told).map(([trainer, list]) => [trainer, new Map(list.flatMap((option) => option.names.map((name) => [name, option])))]));
  return (trainer) => by_trainer.get(trainer) ?? NONE;
}

export function choicesOf(option) {
  if (!option || option.several) return [];
  return option.choices?.length ? option.choices : option.kind === "switch" ? ["true", "false"] : [];
}

export function typeOf(option) {
  const kind = option.choices?.length ? t("One of: %(choices)s", { choices: option.choices.join(", ") }) : (KINDS[option.kind] ?? KINDS.other)();
  return option.several ? t("Several values: %(kind)s", { kind }) : kind;
}

// Which numbers the trainer's own form takes; empty where it does not say.
export function rangeOf({ least = null, most = null }) {
  const bounds = { least: String(Number(shown(least))), most: String(Number(shown(most))) };
  if (least !== null && most !== null) return t("%(least)s to %(most)s", bounds);
  if (least !== null) return t("at least %(least)s", bounds);
  return most === null ? "" : t("at most %(most)s", bounds);
}

// What the trainer says of an option, in its own words: they are English in every language.
export function helpOf(option) {
  const told = document.createElement("span");
  told.lang = "en";
  told.textContent = option.help ?? "";
  return told;
}

// Kind, range, default and help in one line, as far as they are known.
export function describe(place, option, first = [typeOf(option)]) {
  const parts = [...first, rangeOf(option), option.default ? t("default: %(value)s", { value: option.default }) : ""].filter(Boolean);
  place.replaceChildren(parts.join(" · "));
  if (option.help) place.append(parts.length ? " · " : "", helpOf(option));
}
