// Pools: what a provider offers is shown as a table, of a pool that is there ("Test") or of one that is being filled in.
import { call, formBody, showProblem } from "../common/actions.js";
import { number } from "../common/format.js";
import { t } from "../common/words.js";

function row(offer) {
  const line = document.createElement("tr");
  const gpus = offer.gpus ? `${offer.gpus} × ${offer.gpu_name || t("GPU")}${offer.vram_gb ? ` ${offer.vram_gb} GB` : ""}` : "CPU";
  const market = offer.spot ? t("Spot") : t("On demand");
  const disk = offer.disk_gb ? `${number(offer.disk_gb, 0)} GB` : "–";
  const reliability = offer.reliability === null ? "–" : `${number(offer.reliability * 100, 1)} %`;
  for (const [text, style] of [[gpus, "lead"], [offer.price, "num"], [market, ""], [offer.region || "–", ""], [offer.cuda || "–", "num"], [disk, "num"], [reliability, "num"], [offer.eligible ? t("yes") : t("no"), ""]]) {
    line.append(Object.assign(document.createElement("td"), { textContent: text, className: style }));
  }
  return line;
}

function show(offers) {
  const dialog = document.getElementById("offers");
  dialog.querySelector("tbody").replaceChildren(...offers.map(row));
  dialog.querySelector(".table-box").hidden = !offers.length;
  dialog.querySelector("[data-none]").hidden = Boolean(offers.length);
  dialog.showModal();
}

document.addEventListener("offered", (event) => show(event.detail.offers));

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-live-offers]");
  if (!button) return;
  const place = button.form.querySelector("[data-problem]");
  showProblem(place, null);
  button.disabled = true;
  try {
    show((await call("POST", "/api/pools/offers", formBody(button.form))).offers);
  } catch (problem) {
    showProblem(place, problem);
  } finally {
    button.disabled = false;
  }
});
