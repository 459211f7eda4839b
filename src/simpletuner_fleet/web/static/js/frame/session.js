// A session may end while its page is open. Nothing leads away from a page on which somebody has typed: it says that they
// are logged out, and asks for nothing by itself until they are back.
import { t } from "../common/words.js";

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
function isTouched() {
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

export function sessionEnded(told) {
  if (!isTouched()) return location.reload();
  problem = told?.title ? told : { title: t("You have been logged out."), detail: "", status: 401 };
  if (box) return place();
  box = document.createElement("div");
  box.setAttribute("role", "alert");
  place();
  box.append(
    Object.assign(document.createElement("strong"), { textContent: t("You have been logged out.") }),
    Object.assign(document.createElement("span"), { textContent: t("What is on this page stays: log in, then go on here.") }),
    loginLink(),
  );
  document.dispatchEvent(new CustomEvent("session"));
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
