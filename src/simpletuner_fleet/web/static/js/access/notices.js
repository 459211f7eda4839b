// Notifications: what a channel can take, a secret that is shown once, and what came of a test message.
import { toast } from "../common/toast.js";
import { t } from "../common/words.js";

function fit(select) {
  const form = select.closest("form");
  const { example, people, log, onlyLog } = select.selectedOptions[0].dataset;
  form.querySelector("[data-address]").placeholder = example;
  const forPeople = form.querySelector("[data-for-people]");
  forPeople.hidden = !people;
  for (const field of forPeople.querySelectorAll("input, select")) field.disabled = !people;
  const choice = form.querySelector("[data-log-choice]");
  if (!choice) return;
  const box = choice.querySelector("input");
  choice.hidden = !log;
  box.disabled = !log;
  if (!log) box.checked = false;
  if (onlyLog) box.checked = true;
  choose(form, box, Boolean(onlyLog));
}

// The audit log goes to a place of its own.
function choose(form, box, only) {
  for (const event of form.querySelectorAll("[data-event]")) {
    event.disabled = box.checked || only;
    event.closest("label").hidden = only;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-channel]")) fit(event.target);
  if (event.target.matches("[data-log-event]")) choose(event.target.form, event.target, false);
});

document.addEventListener("opened", (event) => {
  const select = event.target.querySelector("[data-channel]");
  if (select) fit(select);
  const zone = event.target.querySelector("[data-zone]");
  if (zone) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
}, true);

document.addEventListener("endpoint-made", (event) => {
  const { secret } = event.detail;
  if (!secret) return;
  const dialog = document.getElementById("the-secret");
  dialog.querySelector("[data-once-text]").textContent = secret;
  dialog.showModal();
});

document.addEventListener("tried", (event) => {
  const { state, detail } = event.detail;
  if (state === "delivered") toast(t("The test message has arrived."));
  else if (state === "sending") toast(t("The receiver is slow; the history will show what came of it."));
  else toast(t("The test message did not arrive: %(detail)s", { detail }), true);
});
