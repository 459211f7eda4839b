// A worker's token, shown once with the commands that carry it, and the box below that shows the machine come in.
import { isLive, refresh } from "../frame/live.js";

const WAITING_MS = 4000;
const place = document.getElementById("commands");
const tabs = [...place.querySelectorAll("[role=tab]")];

function choose(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", String(chosen));
    one.tabIndex = chosen ? 0 : -1;
    document.getElementById(one.getAttribute("aria-controls")).hidden = !chosen;
  }
}

function show(told) {
  for (const pre of place.querySelectorAll("[data-command]")) pre.textContent = told.connection_commands[pre.dataset.command];
  place.querySelector("[data-token]").textContent = told.token;
  place.hidden = false;
  place.querySelector("h2").focus();
  place.scrollIntoView({ block: "start" });
}

document.addEventListener("created", (event) => {
  show(event.detail);
  document.getElementById("make").remove();
  history.replaceState(null, "", `/admin/workers/create?worker=${encodeURIComponent(event.detail.worker_id)}`);
  refresh();
});

document.addEventListener("rotated", (event) => {
  document.getElementById("lost-token")?.remove();
  show(event.detail);
  refresh();
});

place.addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) choose(tab);
});

place.addEventListener("keydown", (event) => {
  const at = tabs.indexOf(event.target);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (at < 0 || !step) return;
  const next = tabs[(at + step + tabs.length) % tabs.length];
  choose(next);
  next.focus();
  event.preventDefault();
});

// What fails without a word, such as a wrong fingerprint, makes no event: while somebody waits, it is looked for.
setInterval(() => {
  if (document.querySelector("[data-waiting]") && isLive()) refresh();
}, WAITING_MS);
