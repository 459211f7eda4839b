// A trainer's own options, as a worker reported them: what kind of value each takes, and which ones.
import { t } from "./words.js";

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
