// What somebody changed and did not save, for as long as this tab lives: leaving the page loses nothing.
import { read } from "../common/exact.js";

const name = `simpletuner.draft:${document.body.dataset.caller}:${location.pathname}${location.search}`;

export function keep(draft) {
  try {
    sessionStorage.setItem(name, JSON.stringify(draft));
  } catch {
    return;
  }
}

export function kept() {
  try {
    const text = sessionStorage.getItem(name);
    return text ? read(text) : null;
  } catch {
    return null;
  }
}

export function drop() {
  try {
    sessionStorage.removeItem(name);
  } catch {
    return;
  }
}
