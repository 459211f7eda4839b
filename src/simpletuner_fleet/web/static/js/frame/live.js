// What changes on the server changes here. Regions of the page are fetched again, all with one request, when an event
// concerns them: <section id="x" data-region="jobs job:j_1 workers">. What is stale says so.
import { heard, now } from "./clock.js";
import { clockTime } from "../common/format.js";
import { caller } from "../common/caller.js";
import { said } from "../common/refusals.js";
import { patch } from "./progress.js";
import { hasEnded, isTouched, loggedInAgain, lookWhoIsHere, sessionEnded } from "./session.js";
import { t } from "../common/words.js";

const SOON_MS = 250;
const SETTLE_MS = 1000;
// A server that is slow to answer is asked less often: so many times as long as its last answer took, and no longer than this.
const PACE = 10;
const PACED_MS = 15000;
// After a look that failed the next is this far away, and twice as far after each that follows.
const FAILED_MS = 2000;
// Not everything that a page shows is told of as it changes: a page that was long without news looks by itself.
const QUIET_MS = 60000;
const PROGRESS_MS = 5000;
const PATCHED_MS = 15000;
const button = document.getElementById("live");
const banner = document.getElementById("stale");
const regions = () => [...document.querySelectorAll("[data-region]")];

// What is no longer there, or no longer for us, as our own server says it; a proxy may say the same of itself.
const GONE = [403, 404, 410];
const OUR_PROBLEM = "data-problem-page";

let paused = false;
let leaving = false;
let state = "connecting";
// Why there is no stream, where the server has refused it.
let order = null;
let fresh = now();
// The newest event when the server began to make this page; null once the stream has taken over, MISSED once there was none.
const MISSED = -1;
let shows = Number(button?.dataset.newest);
let dirty = false;
// A page of other parts came while somebody typed or a dialog was open: it is fetched again once they are done.
let putOff = false;
// The page is another by now: how it is loaded again, as soon as nothing is lost with this one.
let another = null;
let timer = null;
let fetching = null;
let begun = 0;
let took = 0;
let failed = 0;
let later = null;
const progress = new Map();

function show() {
  const shown = paused ? "paused" : state;
  if (button) {
    button.dataset.state = shown;
    button.setAttribute("aria-pressed", String(paused));
    button.querySelector(".said").textContent = shown === "live" ? t("Live") : shown === "paused" ? t("Paused")
      : shown === "lost" || shown === "refused" ? t("Not live") : t("Connecting…");
    button.title = paused ? t("Updates are paused. Click to resume.") : t("Click to pause updates.");
  }
  const stale = state === "lost" || state === "refused";
  document.body.classList.toggle("stale", stale);
  if (banner) {
    banner.hidden = !stale || hasEnded();
    const time = clockTime(fresh);
    if (state === "lost") banner.textContent = t("Live updates are interrupted. Showing data from %(time)s. Reconnecting.", { time });
    if (state === "refused") banner.textContent = t("Live updates were refused: %(why)s Showing data from %(time)s.", { why: said(order), time });
  }
}

function concerns(region, data) {
  const topics = region.dataset.region.split(" ");
  if (data.type === "job") return topics.includes("jobs") || topics.includes(`job:${data.id}`);
  if (data.type === "worker") return topics.includes("workers") || topics.includes(`worker:${data.id}`);
  return topics.includes(data.type);
}

function busyWithin(place) {
  const at = document.activeElement;
  const edits = at?.closest(place) && at.matches("input:not([type=checkbox]), textarea, select");
  return Boolean(edits || document.querySelector(`${place} dialog[open]`));
}

// Who looks at what is gone gets another page; what they type is not taken away.
function reloadUnlessBusy() {
  another = reloadUnlessBusy;
  if (!busyWithin("body")) location.reload();
}

// Who logged in as somebody else in another tab gets another page, too; what was typed into this one stays.
function reloadUnlessTouched() {
  another = reloadUnlessTouched;
  if (isTouched()) lookWhoIsHere();
  else location.reload();
}

// Where other regions came to be or went, as with the first worker ever, all of the content is another; so it is with
// other dialogs, or a button would open none.
function isAnother(page) {
  const names = (root) => [...root.querySelectorAll("main :is([data-region], dialog)")].map((part) => part.id).sort().join(" ");
  return names(document) !== names(page);
}

// What a page is about may be called otherwise by now.
function rename(page) {
  const [heading, told] = [document.querySelector(".head h1"), page.querySelector("header h1")];
  if (heading && told && heading.textContent !== told.textContent) heading.textContent = told.textContent;
}

async function swapAll(text, page) {
  rename(page);
  if (isAnother(page)) {
    if (busyWithin("main")) putOff = true;
    else await swap(document.getElementById("content"), text);
  }
  for (const region of regions()) {
    if (text.includes(`id="${region.id}"`)) await swap(region, text);
  }
}

// The server does not know what somebody has unfolded.
async function swap(region, text) {
  const unfolded = [...region.querySelectorAll("details[open]")];
  await window.htmx.swap({ text, target: region, select: `#${CSS.escape(region.id)}`, swap: "outerMorph", sourceElement: region });
  for (const one of unfolded) one.open = true;
}

export function isOurs(text) {
  return text.includes(`data-caller="${caller}"`);
}

// The page as it is now: its parts that change, without the frame around them.
export function fetchPage(signal) {
  return fetch(location.href, { headers: { "x-live": "1", accept: "text/html" }, signal });
}

const isLogIn = (answer) => answer.status === 401 || (answer.redirected && new URL(answer.url).pathname === "/login");

async function fetchRegions() {
  dirty = putOff = false;
  clearTimeout(later);
  later = null;
  begun = Date.now();
  fetching = new AbortController();
  try {
    const answer = await fetchPage(fetching.signal);
    if (isLogIn(answer)) return sessionEnded();
    if (answer.redirected) return reloadUnlessBusy();
    const text = await answer.text();
    if (GONE.includes(answer.status) && text.includes(OUR_PROBLEM) && !leaving) return isOurs(text) ? reloadUnlessBusy() : reloadUnlessTouched();
    if (!answer.ok) return fail();
    took = Date.now() - begun;
    failed = 0;
    if (!isOurs(text)) return reloadUnlessTouched();
    another = null;
    const page = new DOMParser().parseFromString(text, "text/html");
    await swapAll(text, page);
    fresh = now();
    document.dispatchEvent(new CustomEvent("refreshed", { detail: { page } }));
  } catch (error) {
    if (error.name !== "AbortError") fail();
  } finally {
    fetching = null;
    if (dirty) soon();
  }
}

function fail() {
  failed = Math.max(FAILED_MS, Math.min(PACED_MS, 2 * failed));
  dirty = true;
}

function soon() {
  if (timer || fetching) return;
  const settled = Math.max(SETTLE_MS, failed, Math.min(PACED_MS, PACE * took));
  const wait = Math.max(SOON_MS, settled - (Date.now() - begun));
  timer = setTimeout(() => {
    timer = null;
    if (paused || leaving || hasEnded() || document.hidden || busyWithin("[data-region]")) return;
    fetchRegions();
  }, wait);
}

function goOn() {
  if (another) setTimeout(another, SOON_MS);
  dirty ||= putOff;
  if (dirty) soon();
}

// A step more changes no list and no button: it is written where it stands, and the rest of the page follows in a while.
function isOnlyProgress(data) {
  if (data.type !== "job" || data.status !== "running" || !data.progress?.step) {
    progress.delete(data.id);
    return false;
  }
  const [before, told] = [progress.get(data.id), JSON.stringify([data.status, data.progress])];
  progress.set(data.id, told);
  return before !== undefined && before !== told && JSON.parse(before)[0] === data.status;
}

function inAWhile(wait) {
  later ??= setTimeout(() => {
    later = null;
    dirty = true;
    soon();
  }, wait);
}

// A page that has asked for what ends it, and goes elsewhere at the answer, does not look at itself until then.
export function leave(yes) {
  leaving = yes;
  if (yes && fetching) {
    dirty = true;
    fetching.abort();
  } else if (!yes && dirty) soon();
}

export function isLive() {
  return !document.hidden && !paused && state === "live";
}

export function refresh() {
  if (another) return another();
  if (hasEnded()) return;
  dirty = true;
  if (!fetching) fetchRegions();
}

// Looks again if anything happened between the making of this page and its first message from the stream.
function catchUp({ state: told, newest }) {
  if (shows === null || told !== "live") return;
  if (newest !== shows && regions().length) {
    dirty = true;
    soon();
  }
  shows = null;
}

function listen(message) {
  if (message.kind === "state") {
    catchUp(message);
    const back = message.state === "live" && (state === "lost" || state === "refused");
    [state, order] = [message.state, message.order];
    if (state === "lost") fetching?.abort();
    if (back) {
      failed = 0;
      clearTimeout(timer);
      timer = null;
      dirty = true;
      soon();
    }
  } else if (message.kind === "ended") {
    sessionEnded();
  } else {
    state = "live";
    const { data } = message;
    heard(data.at);
    if (data.caller && data.caller !== caller) return reloadUnlessTouched();
    // Whoever had been logged out is logged in again, and goes on with what they typed.
    if (data.type === "ready") {
      another = null;
      loggedInAgain();
    }
    document.dispatchEvent(new CustomEvent("fleet", { detail: data }));
    if (data.type === "ping" || data.type === "ready") {
      if (!dirty) fresh = now();
    } else if (regions().some((region) => concerns(region, data))) {
      if (isOnlyProgress(data)) inAWhile(patch(data.id, data.progress) ? PATCHED_MS : PROGRESS_MS);
      else {
        dirty = true;
        soon();
      }
    }
  }
  show();
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && dirty) soon(); });
document.addEventListener("session", () => {
  if (!hasEnded()) {
    another = null;
    dirty = true;
    soon();
  }
  show();
});
document.addEventListener("focusout", goOn);
document.addEventListener("close", goOn, { capture: true });
button?.addEventListener("click", () => {
  paused = !paused;
  if (!paused) refresh();
  show();
});

const loaded = Date.now();
setInterval(() => {
  // An answer that never comes is not waited for: the page would stay as it is, and say that it is live.
  if (fetching && Date.now() - begun >= QUIET_MS) {
    dirty = true;
    fetching.abort();
    return;
  }
  const quiet = Date.now() - Math.max(loaded, begun) >= QUIET_MS;
  if (!quiet || hasEnded() || state !== "live" || fetching || !regions().length) return;
  dirty = true;
  soon();
}, QUIET_MS / 4);

// What was refused, or waits for its next try, is asked for at once.
function whenSomebodyIsBack(back) {
  const isWanted = () => !document.hidden && (state === "lost" || state === "refused");
  for (const [place, event] of [[document, "visibilitychange"], [window, "focus"], [window, "online"]]) {
    place.addEventListener(event, () => {
      if (isWanted()) back();
      if (hasEnded() && !document.hidden) lookWhoIsHere();
    });
  }
}

function connect() {
  const script = document.body.dataset.liveWorker;
  if (!button || !script) return;
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  if ("SharedWorker" in window) {
    const worker = new SharedWorker(script, { name: "simpletuner-live", type: "module" });
    worker.port.onmessage = (event) => listen(event.data);
    whenSomebodyIsBack(() => worker.port.postMessage("back"));
    addEventListener("pagehide", () => worker.port.postMessage("bye"));
    return;
  }
  let worker = null;
  const follow = () => {
    if (document.hidden) {
      worker?.terminate();
      worker = null;
      shows ??= MISSED;
    } else if (!worker) {
      worker = new Worker(script, { type: "module" });
      worker.onmessage = (event) => listen(event.data);
    }
  };
  document.addEventListener("visibilitychange", follow);
  whenSomebodyIsBack(() => worker?.postMessage("back"));
  follow();
}

connect();
show();
