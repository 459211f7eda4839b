// One act on all jobs that match. The server counts them, a person confirms the number, and the server refuses where it
// is another one by then; some hundred are acted on in one call.
import { call, showProblem } from "../common/actions.js";
import { refresh } from "../frame/live.js";
import { toast } from "../common/toast.js";
import { lang, t, tn } from "../common/words.js";

const dialog = document.getElementById("matching");
const form = dialog?.querySelector("form");
const go = form?.querySelector("[data-matching-go]");
let counted = null;
let atLeast = false;
let asked = 0;

function search() {
  return JSON.parse(form.dataset.matching);
}

function act() {
  return form.elements.act.value;
}

function says(n) {
  const shown = atLeast ? { n: t("at least %(least)s", { least: new Intl.NumberFormat(lang).format(n) }) } : {};
  if (act() === "cancel") return tn("Cancel %(n)s job", "Cancel %(n)s jobs", n, shown);
  if (act() === "delete") return tn("Delete %(n)s job", "Delete %(n)s jobs", n, shown);
  if (act() === "retry") return tn("Retry %(n)s job", "Retry %(n)s jobs", n, shown);
  if (act() === "priority") return tn("Set the priority of %(n)s job", "Set the priority of %(n)s jobs", n, shown);
  return tn("Change the tags of %(n)s job", "Change the tags of %(n)s jobs", n, shown);
}

async function count() {
  const mine = asked += 1;
  counted = null;
  go.disabled = true;
  go.textContent = t("Counting…");
  for (const part of form.querySelectorAll("[data-for-act]")) part.hidden = part.dataset.forAct !== act();
  try {
    const told = await call("POST", "/api/matching/count", { search: search(), act: act() });
    if (mine !== asked) return;
    [counted, atLeast] = [told.count, told.at_least];
    go.textContent = says(counted);
    go.disabled = counted === 0;
  } catch (problem) {
    if (mine === asked) showProblem(form.querySelector("[data-problem]"), problem);
  }
}

function wished() {
  const words = (name) => form.elements[name].value.split(/[\s,]+/).filter(Boolean);
  if (act() === "cancel") return { checkpoint_first: form.elements.checkpoint_first.checked };
  if (act() === "priority") return { priority: form.elements.priority.value };
  if (act() === "tags") return { add: words("add"), remove: words("remove") };
  return {};
}

async function all() {
  const [sum, what, body] = [{ done: 0, refused: 0, first: null }, act(), { search: search(), expected: counted, ...wished() }];
  let cursor = null;
  do {
    const told = await call("POST", `/api/matching/${what}`, { ...body, cursor });
    sum.done += told.done;
    sum.refused += told.refused;
    sum.first ??= told.refusals[0] || null;
    cursor = told.next;
    go.textContent = tn("%(n)s job done…", "%(n)s jobs done…", sum.done);
  } while (cursor);
  return sum;
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  go.disabled = true;
  const place = form.querySelector("[data-problem]");
  showProblem(place, null);
  try {
    const sum = await all();
    dialog.close();
    toast(tn("Done: %(n)s job.", "Done: %(n)s jobs.", sum.done));
    const refused = tn("%(n)s job was refused:", "%(n)s jobs were refused:", sum.refused);
    if (sum.refused) toast([refused, sum.first.detail].join(" "), true);
  } catch (problem) {
    if (!problem?.title) throw problem;
    showProblem(place, problem);
    await count();
  }
  refresh();
});

form?.addEventListener("change", (event) => { if (event.target.name === "act") count(); });
document.addEventListener("click", (event) => { if (event.target.closest("[data-opens=matching]")) count(); });
