// Ctrl+K: pages, jobs and workers by name or id, and what can be done on this page. A combobox with a list, so that it is
// worked by keyboard and read aloud; nothing in it is markup of ours or of others.
import { call } from "../common/actions.js";
import { t, tn } from "../common/words.js";

const WAIT_MS = 120;
const MOST_ACTIONS = 12;
const dialog = document.getElementById("palette");
const input = document.getElementById("palette-input");
const list = document.getElementById("palette-list");
const said = document.getElementById("palette-said");
let shown = [];
let at = 0;
let asked = 0;
let timer = null;

const kinds = () => ({ page: t("Page"), action: t("Action"), job: t("Job"), worker: t("Worker"), search: t("Search") });
const text = (element) => element.textContent.replace(/\s+/g, " ").trim();

function pages() {
  return [...document.querySelectorAll(".rail nav a.item")].map((link) => ({ kind: "page", title: text(link), go: () => location.assign(link.href) }));
}

function actions() {
  const offered = document.querySelectorAll(".head .actions :is(a.button, button:not(#live)), .person-actions button, main [data-palette]");
  return [...offered].filter((one) => one.checkVisibility() && !one.disabled && text(one)).slice(0, MOST_ACTIONS)
    .map((one) => ({ kind: "action", title: text(one), go: () => one.click() }));
}

function fits(item, words) {
  const title = item.title.toLowerCase();
  return words.every((word) => title.includes(word));
}

function here(typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...pages(), ...actions()].filter((item) => fits(item, words));
  if (typed) all.push({ kind: "search", title: t("Find jobs with “%(text)s”", { text: typed }), go: () => location.assign(`/jobs?${new URLSearchParams({ q: typed })}`) });
  return all;
}

// What begins with the words comes before what has them somewhere.
function nearestFirst(items, typed) {
  const begins = (item) => item.title.toLowerCase().startsWith(typed.toLowerCase());
  return [...items.filter(begins), ...items.filter((item) => !begins(item))];
}

function choose(place) {
  if (!shown.length) return input.removeAttribute("aria-activedescendant");
  at = (place + shown.length) % shown.length;
  for (const [number, row] of [...list.children].entries()) row.setAttribute("aria-selected", String(number === at));
  input.setAttribute("aria-activedescendant", `palette-${at}`);
  list.children[at].scrollIntoView({ block: "nearest" });
}

function draw(items) {
  const names = kinds();
  shown = items;
  list.replaceChildren(...items.map((item, number) => {
    const row = Object.assign(document.createElement("li"), { id: `palette-${number}`, role: "option" });
    const title = Object.assign(document.createElement("span"), { textContent: item.title, className: "grow" });
    const kind = Object.assign(document.createElement("span"), { textContent: names[item.kind], className: "muted" });
    row.append(title, kind);
    return row;
  }));
  said.textContent = tn("%(n)s result", "%(n)s results", items.length);
  choose(0);
}

async function look(typed) {
  const mine = ++asked;
  try {
    const { items } = await call("GET", `/api/palette?${new URLSearchParams({ q: typed })}`);
    if (mine !== asked || !dialog.open) return;
    const found = items.map((item) => ({ ...item, title: item.title === item.id ? item.id : `${item.title} · ${item.id}`, go: () => location.assign(item.href) }));
    const own = here(typed);
    draw([...nearestFirst([...own.filter((item) => item.kind !== "search"), ...found], typed), ...own.filter((item) => item.kind === "search")]);
  } catch (problem) {
    if (!problem?.title) throw problem;
    said.textContent = problem.title;
  }
}

function typed() {
  const words = input.value.trim();
  asked += 1;
  draw(here(words));
  clearTimeout(timer);
  if (words) timer = setTimeout(() => look(words), WAIT_MS);
}

function open() {
  if (dialog.open || document.querySelector("dialog[open]")) return;
  input.value = "";
  dialog.showModal();
  typed();
  input.focus();
}

function take(place) {
  const item = shown[place];
  if (!item) return;
  dialog.close();
  item.go();
}

document.addEventListener("keydown", (event) => {
  if (!dialog || event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  open();
});

input?.addEventListener("input", typed);
input?.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1 };
  if (event.key in moves) choose(moves[event.key]);
  else if (event.key === "Enter") take(at);
  else return;
  event.preventDefault();
});
list?.addEventListener("click", (event) => {
  const row = event.target.closest("[role=option]");
  if (row) take([...list.children].indexOf(row));
});
document.querySelector("[data-opens-palette]")?.addEventListener("click", open);
