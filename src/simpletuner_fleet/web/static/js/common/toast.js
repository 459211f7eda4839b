// Short messages at the edge; a screen reader hears them too.
import { t } from "./words.js";

const STAY_MS = 6000;

export function toast(text, bad = false) {
  const box = document.getElementById("toasts");
  const one = document.createElement("div");
  one.className = bad ? "toast is-bad" : "toast";
  const said = document.createElement("span");
  said.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "button quiet small";
  close.textContent = "✕";
  close.setAttribute("aria-label", t("Close"));
  close.addEventListener("click", () => one.remove());
  one.append(said, close);
  box.append(one);
  setTimeout(() => one.remove(), bad ? STAY_MS * 2 : STAY_MS);
}
