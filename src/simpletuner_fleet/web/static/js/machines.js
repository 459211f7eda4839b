// Pools: what a provider answers to the button "Test" is shown as a table of offers.
import { t } from "./words.js";

function row(offer) {
  const line = document.createElement("tr");
  const gpus = offer.gpus ? `${offer.gpus} × ${offer.gpu_name || t("GPU")}${offer.vram_gb ? ` ${offer.vram_gb} GB` : ""}` : "CPU";
  const market = offer.spot ? t("Spot") : t("On demand");
  for (const [text, style] of [[gpus, "lead"], [`${offer.price.toFixed(2)} $`, "num"], [market, ""], [offer.region || "–", ""], [offer.eligible ? t("yes") : t("no"), ""]]) {
    line.append(Object.assign(document.createElement("td"), { textContent: text, className: style }));
  }
  return line;
}

document.addEventListener("offered", (event) => {
  const dialog = document.getElementById("offers");
  dialog.querySelector("tbody").replaceChildren(...event.detail.offers.map(row));
  dialog.querySelector(".table-box").hidden = !event.detail.offers.length;
  dialog.querySelector("[data-none]").hidden = Boolean(event.detail.offers.length);
  dialog.showModal();
});
