// Several jobs at once: what is selected outlives a refresh of the list.
import { call } from "../common/actions.js";
import { refresh } from "../frame/live.js";
import { toast } from "../common/toast.js";
import { lang, tn } from "../common/words.js";

const MOST_COMPARED = 8;
const chosen = new Set();
const bar = document.querySelector("[data-batch]");
let asked = [];
let acting = false;
const dialogs = { cancel: document.getElementById("batch-cancel"), delete: document.getElementById("batch-delete") };

function rowsThatMay(what) {
  return [...chosen].filter((id) => document.getElementById(`row-${id}`)?.dataset[what] === "true");
}

// Written without need, it would be read out again after every refresh.
function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function show() {
  for (const box of document.querySelectorAll("[data-pick]")) {
    box.checked = chosen.has(box.dataset.pick);
    box.closest("tr").setAttribute("aria-selected", String(box.checked));
  }
  if (!bar) return;
  bar.hidden = chosen.size === 0;
  write(bar.querySelector("[data-batch-count]"), tn("%(n)s job selected", "%(n)s jobs selected", chosen.size));
  const others = [...chosen].filter((id) => document.getElementById(`row-${id}`)?.dataset.steer === "false").length;
  write(bar.querySelector("[data-batch-others]"), others ? ` · ${tn("%(n)s of them is somebody else's: you can only compare it.", "%(n)s of them are somebody else's: you can only compare them.", others)}` : "");
  bar.querySelector("[data-batch-compare]").disabled = chosen.size > MOST_COMPARED;
  for (const button of bar.querySelectorAll("[data-batch-do]")) {
    const n = rowsThatMay(button.dataset.batchDo).length;
    button.disabled = acting || n === 0;
    button.querySelector("[data-batch-number]").textContent = `(${new Intl.NumberFormat(lang).format(n)})`;
  }
}

function said(what, n) {
  if (what === "cancel") return tn("%(n)s job is being cancelled.", "%(n)s jobs are being cancelled.", n);
  if (what === "delete") return tn("%(n)s job is deleted.", "%(n)s jobs are deleted.", n);
  return tn("%(n)s job is queued again.", "%(n)s jobs are queued again.", n);
}

async function each(what, ids, body) {
  acting = true;
  show();
  let done = 0;
  let refused = null;
  for (const id of ids) {
    try {
      const path = `/api/jobs/${encodeURIComponent(id)}`;
      await (what === "delete" ? call("DELETE", path) : call("POST", `${path}/${what}`, body));
      chosen.delete(id);
      done += 1;
    } catch (problem) {
      refused = problem;
    }
  }
  acting = false;
  if (done) toast(said(what, done));
  if (refused) toast([refused.title, refused.detail].filter(Boolean).join(" "), true);
  show();
  refresh();
}

document.addEventListener("change", (event) => {
  const box = event.target.closest("[data-pick]");
  if (box) {
    if (box.checked) chosen.add(box.dataset.pick);
    else chosen.delete(box.dataset.pick);
    show();
  }
  if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
});

bar?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-batch-do]");
  if (event.target.closest("[data-batch-compare]")) {
    location.assign(`/compare?${new URLSearchParams([...chosen].map((id) => ["job", id]))}`);
  } else if (event.target.closest("[data-batch-clear]")) {
    chosen.clear();
    show();
  } else if (button?.dataset.batchDo === "retry") {
    each("retry", rowsThatMay("retry"), {});
  } else if (button) {
    const [what, dialog] = [button.dataset.batchDo, dialogs[button.dataset.batchDo]];
    asked = rowsThatMay(what);
    const n = asked.length;
    dialog.querySelector("[data-batch-title]").textContent = what === "cancel" ? tn("Cancel %(n)s job?", "Cancel %(n)s jobs?", n) : tn("Delete %(n)s job?", "Delete %(n)s jobs?", n);
    dialog.showModal();
  }
});

for (const [what, dialog] of Object.entries(dialogs)) {
  dialog?.querySelector("[data-batch-confirm]").addEventListener("click", () => {
    dialog.close();
    each(what, asked, { checkpoint_first: dialog.querySelector("[data-batch-checkpoint]")?.checked });
  });
}

document.addEventListener("refreshed", show);
show();

