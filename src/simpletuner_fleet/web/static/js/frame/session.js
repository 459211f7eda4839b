// A session may end while its page is open, and somebody else may log in with this browser. Nothing leads away from a page
// on which somebody has typed: it says that they are logged out, or who is logged in, and asks for nothing by itself until
// they are back.
import { caller } from "../common/caller.js";
import { t } from "../common/words.js";

const WHO_IS_HERE = "/api/whoami";
const LONGEST_LOOK_MS = 10_000;

let problem = null;
let box = null;

export function loginAddress() {
  return `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
}

export const hasEnded = () => problem !== null;

// What is not asked while nobody is logged in says so itself.
export const whyEnded = () => problem;

function isChanged(field) {
  if (field instanceof HTMLSelectElement) {
    const given = [...field.options].findIndex((one) => one.defaultSelected);
    return field.multiple ? [...field.options].some((one) => one.selected !== one.defaultSelected) : field.selectedIndex > Math.max(0, given) || field.selectedIndex < given;
  }
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.type === "file") return field.files.length > 0;
  return field.type !== "hidden" && field.value !== field.defaultValue;
}

// Whether anything would be lost with this page.
export function isTouched() {
  const typesIn = document.activeElement?.matches("input:not([type=checkbox]), textarea, select");
  return Boolean(typesIn || document.querySelector("dialog[open]") || [...document.querySelectorAll("input, textarea, select")].some(isChanged));
}

// The typed text stays here, so the way to log in is beside this page; who has taken it and is back goes on.
export function loginLink() {
  return Object.assign(document.createElement("a"), { href: loginAddress(), target: "_blank", textContent: t("Log in (new tab)") });
}

// What stands outside an open dialog can be neither read nor pressed.
function place() {
  const dialog = [...document.querySelectorAll("dialog[open]")].at(-1);
  box.className = dialog ? "problem logged-out" : "bar-stale logged-out";
  const bar = document.getElementById("stale");
  if (dialog) dialog.prepend(box);
  else if (bar) bar.after(box);
  else document.body.prepend(box);
}

// What has not changed is not read out again.
function tell(why, parts) {
  problem = why;
  const text = parts.map((part) => part.textContent).join("");
  if (box?.textContent === text) return place();
  box ??= document.createElement("div");
  box.setAttribute("role", "alert");
  place();
  box.replaceChildren(...parts);
  document.dispatchEvent(new CustomEvent("session"));
}

const element = (tag, textContent) => Object.assign(document.createElement(tag), { textContent });

export function sessionEnded(told) {
  if (!isTouched()) return location.reload();
  tell(
    told?.title ? told : { title: t("You have been logged out."), detail: "", status: 401 },
    [element("strong", t("You have been logged out.")), element("span", t("What is on this page stays: log in, then go on here.")), loginLink()],
  );
}

function discardButton() {
  const button = Object.assign(element("button", t("Discard it and reload")), { type: "button", className: "button small" });
  button.addEventListener("click", () => {
    problem = null;
    location.reload();
  });
  return button;
}

async function whoIsHere() {
  try {
    const answer = await fetch(WHO_IS_HERE, { headers: { accept: "application/json" }, signal: AbortSignal.timeout(LONGEST_LOOK_MS) });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

// The server refuses whatever this page asks for meanwhile, as it says whose page it is: nothing is sent as somebody else.
export async function lookWhoIsHere() {
  const who = await whoIsHere();
  if (!who?.name) return;
  if (who.id === caller) return loggedInAgain();
  if (!isTouched()) return location.reload();
  const said = t("You are now logged in as '%(name)s'.", who);
  const stays = t("What is on this page stays, and is not sent as %(name)s. To go on here, log in as %(own)s again.", { name: who.name, own: document.body.dataset.callerName });
  tell({ title: t("This page was opened by another user."), detail: said, next: stays, status: 409, code: "page_of_another" }, [element("strong", said), element("span", stays), loginLink(), discardButton()]);
}

export function loggedInAgain() {
  if (!problem) return;
  problem = null;
  box.remove();
  box = null;
  document.dispatchEvent(new CustomEvent("session"));
}

document.addEventListener("close", () => { if (box) place(); }, { capture: true });
document.addEventListener("toggle", () => { if (box) place(); }, { capture: true });
addEventListener("beforeunload", (event) => { if (problem && isTouched()) event.preventDefault(); });
