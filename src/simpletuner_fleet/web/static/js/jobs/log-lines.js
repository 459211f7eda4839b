// The lines that are on screen: at most some thousands, each by its place in the log.
import { fill, plainText } from "./ansi.js";
import { lang } from "../common/words.js";

const MOST_LINES = 5000;
// As many as the server tells of one line.
const MOST_CHARS = 16000;
const clock = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1, hour12: false });

export class LogLines {
  constructor(box) {
    this.box = box;
    this.times = "off";
    this.open = null;
    this.cutAtEnd = false;
  }

  get first() {
    const line = this.box.firstElementChild;
    return line ? Number(line.dataset.offset) : null;
  }

  get count() {
    return this.box.childElementCount;
  }

  get isFull() {
    return this.count >= MOST_LINES;
  }

  clear() {
    this.box.replaceChildren();
    this.open = null;
    this.cutAtEnd = false;
  }

  element({ offset, at, text, partial }) {
    const line = document.createElement("div");
    line.className = "line";
    line.id = `L${offset}`;
    line.dataset.offset = offset;
    if (at) line.dataset.at = at;
    const time = document.createElement("a");
    time.className = "at";
    time.href = `#L${offset}`;
    const said = document.createElement("span");
    said.className = "said";
    fill(said, text);
    line.append(time, said);
    this.stamp(line);
    if (partial) this.open = { line, text };
    return line;
  }

  stamp(line) {
    const at = line.dataset.at && Date.parse(line.dataset.at);
    line.firstElementChild.textContent = this.times === "off" ? "" : at ? (this.times === "utc" ? line.dataset.at.slice(11, 21) : clock.format(at)) : "·";
    if (at) line.firstElementChild.title = line.dataset.at;
  }

  showTimes(style) {
    this.times = style;
    this.box.dataset.times = style;
    for (const line of this.box.children) this.stamp(line);
  }

  prepend(lines) {
    this.box.prepend(...lines.map((line) => this.element(line)));
    while (this.count > MOST_LINES) {
      this.box.lastElementChild.remove();
      this.cutAtEnd = true;
      this.open = null;
    }
  }

  append(lines) {
    this.box.append(...lines.map((line) => this.element(line)));
    this.shorten();
  }

  // Text as it comes, cut anywhere: an unfinished line is finished by the next piece.
  stream(text, offset, at) {
    const pieces = text.split("\n");
    const encoder = new TextEncoder();
    let place = offset - encoder.encode(text).length;
    const fresh = [];
    pieces.forEach((piece, number) => {
      const last = number === pieces.length - 1;
      if (number === 0 && this.open) {
        this.open.text = remains(this.open.text + piece);
        fill(this.open.line.lastElementChild, lastState(this.open.text));
        if (!last) this.open = null;
      } else if (!last || piece) {
        const line = this.element({ offset: place, at, text: lastState(piece), partial: false });
        if (last) this.open = { line, text: remains(piece) };
        fresh.push(line);
      }
      place += encoder.encode(piece).length + 1;
    });
    this.box.append(...fresh);
    this.shorten();
    return fresh.length;
  }

  shorten() {
    let cut = false;
    while (this.count > MOST_LINES) {
      this.box.firstElementChild.remove();
      cut = true;
    }
    return cut;
  }

  text() {
    return [...this.box.children].map((line) => plainText(line.lastElementChild.textContent)).join("\n");
  }
}

function lastState(text) {
  const states = text.split("\r").filter(Boolean);
  return states.length ? states.at(-1).slice(0, MOST_CHARS) : "";
}

// What is needed of an unfinished line to go on with it: a progress bar is written over for hours without an end.
function remains(text) {
  const state = lastState(text);
  return text.endsWith("\r") ? `${state}\r` : state;
}
