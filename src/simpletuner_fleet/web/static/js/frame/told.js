// Being told: how a job is going in the tab's title, and its end by a notification of the browser, if somebody asked for it.
import { call } from "../common/actions.js";
import { caller } from "../common/caller.js";
import { get, put } from "../common/kept.js";
import { toast } from "../common/toast.js";
import { t } from "../common/words.js";

const [own, heading] = [document.title, document.querySelector(".head h1")];
const called = heading?.textContent;
// Others who log in with this browser ask for other jobs.
const KEPT = `told:${caller}`;
const unseen = new Set();
const GONE = ["not_found", "job_deleted"];
const ENDINGS = {
  completed: (job) => t("%(job)s has completed.", { job }),
  failed: (job) => t("%(job)s has failed.", { job }),
  cancelled: (job) => t("%(job)s was cancelled.", { job }),
};

function asked() {
  try {
    return JSON.parse(get(KEPT, "{}"));
  } catch {
    return {};
  }
}

function ask(id, title) {
  const jobs = asked();
  if (title === null) delete jobs[id];
  else jobs[id] = title;
  put(KEPT, JSON.stringify(jobs));
}

function progress() {
  const state = document.querySelector("#state [data-status]");
  if (!state) return "";
  const bar = document.querySelector("main progress.large");
  const share = state.dataset.status === "running" && bar ? ` ${Math.floor((100 * bar.value) / bar.max)}%` : "";
  return `${state.querySelector(".mark").textContent}${share}`;
}

function show() {
  const title = heading ? own.replace(called, () => heading.textContent) : own;
  document.title = [unseen.size ? `(${unseen.size})` : "", progress(), title].filter(Boolean).join(" ");
  for (const button of document.querySelectorAll("[data-tell]")) button.setAttribute("aria-pressed", String(button.dataset.tell in asked()));
}

function notify(id, text) {
  if (!("Notification" in window) || Notification.permission !== "granted") return;
  // All tabs hear of it; what has the same tag is shown once.
  const shown = new Notification(text, { tag: id });
  shown.onclick = () => { window.focus(); location.assign(`/jobs/${encodeURIComponent(id)}`); };
}

function tell(id, status) {
  const title = status in ENDINGS ? asked()[id] : undefined;
  if (title === undefined) return;
  ask(id, null);
  if (document.hidden) unseen.add(id);
  notify(id, ENDINGS[status](title));
  toast(ENDINGS[status](title));
}

// What ended while nobody was connected made no event that anybody heard.
async function lookAfter() {
  for (const id of Object.keys(asked())) {
    try {
      tell(id, (await call("GET", `/api/jobs/${encodeURIComponent(id)}`)).status);
    } catch (problem) {
      if (GONE.includes(problem?.code)) ask(id, null);
    }
  }
  show();
}

document.addEventListener("fleet", ({ detail }) => {
  if (detail.type === "job") tell(detail.id, detail.status);
  if (detail.type === "ready") lookAfter();
  show();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-tell]");
  if (!button) return;
  const { tell: id, title } = button.dataset;
  if (id in asked()) {
    ask(id, null);
    return show();
  }
  ask(id, title);
  show();
  const allowed = "Notification" in window && await Notification.requestPermission() === "granted";
  toast(allowed ? t("You will be told when it ends, while a page of this console is open.") : t("This browser shows no notifications of this page. The title of its tab will tell you."));
});

document.addEventListener("visibilitychange", () => { if (!document.hidden) { unseen.clear(); show(); } });
document.addEventListener("refreshed", show);
show();
