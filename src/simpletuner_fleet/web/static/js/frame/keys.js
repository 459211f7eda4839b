// Single keys, as the sheet behind `?` lists them. They can be turned off, and never act while somebody types.
import { get, put } from "../common/kept.js";

let after = "";

function rows() {
  return [...document.querySelectorAll("main tbody tr[data-href]")];
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.matches(":focus-within") || row === document.activeElement);
  const next = all[Math.min(all.length - 1, Math.max(0, at + step))];
  (next.querySelector("a.main, a") || next).focus();
}

function act(event) {
  if (after === "g") {
    after = "";
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return true;
  }
  const here = document.activeElement?.closest?.("tr[data-href]");
  switch (event.key) {
    case "?": document.getElementById("shortcuts")?.showModal(); return true;
    case "/": document.querySelector("main [data-search]")?.focus(); return true;
    case "g": after = "g"; setTimeout(() => { after = ""; }, 1500); return true;
    case "j": move(1); return true;
    case "k": move(-1); return true;
    case "x": here?.querySelector("input[type=checkbox]")?.click(); return Boolean(here);
    case "f": { const button = document.querySelector("[data-follow]"); button?.click(); return Boolean(button); }
    default: return false;
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]")) return;
  if (get("keys", "on") === "on" && act(event)) event.preventDefault();
});

document.addEventListener("dblclick", (event) => {
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button, input")) location.assign(row.dataset.href);
});

for (const box of document.querySelectorAll("[data-setting=keys]")) {
  box.checked = get("keys", "on") === "on";
  box.addEventListener("change", () => put("keys", box.checked ? "on" : "off"));
}
