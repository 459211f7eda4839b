// Colours of a terminal as elements: text stays text, the usual sixteen colours are classes of our own.
import Anser from "../../vendor/anser.js";

const OTHER_CONTROLS = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CURSOR_MOVES = /\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])/g;
const DECORATIONS = { bold: "ansi-bold", dim: "ansi-dim", italic: "ansi-italic", underline: "ansi-underline", strikethrough: "ansi-strike", reverse: "ansi-reverse" };

function paint(element, part, side, property) {
  const name = part[side];
  if (!name) return;
  const exact = part[`${side}_truecolor`];
  if (name === "ansi-truecolor" && exact) element.style[property] = `rgb(${exact})`;
  else if (name.startsWith("ansi-palette-")) element.style[property] = paletteColour(Number(name.slice(13)));
  else element.classList.add(side === "fg" ? name : name.replace("ansi-", "ansi-bg-"));
}

function paletteColour(index) {
  if (index >= 232) return `rgb(${Array(3).fill(8 + (index - 232) * 10).join(",")})`;
  const cube = index - 16;
  const level = (value) => (value ? 55 + value * 40 : 0);
  return `rgb(${level(Math.floor(cube / 36))},${level(Math.floor(cube / 6) % 6)},${level(cube % 6)})`;
}

export function plainText(text) {
  return Anser.ansiToText(text.replace(CURSOR_MOVES, "")).replace(OTHER_CONTROLS, "");
}

export function fill(element, text) {
  if (!text.includes("\x1b")) {
    element.textContent = text.replace(OTHER_CONTROLS, "");
    return;
  }
  const parts = Anser.ansiToJson(text.replace(CURSOR_MOVES, ""), { use_classes: true, remove_empty: true });
  element.replaceChildren(...parts.map((part) => {
    const content = part.content.replace(OTHER_CONTROLS, "").replaceAll("\x1b", "");
    if (!part.fg && !part.bg && !part.decorations?.length) return document.createTextNode(content);
    const span = document.createElement("span");
    span.textContent = content;
    paint(span, part, "fg", "color");
    paint(span, part, "bg", "backgroundColor");
    for (const one of part.decorations || []) if (DECORATIONS[one]) span.classList.add(DECORATIONS[one]);
    return span;
  }));
}
