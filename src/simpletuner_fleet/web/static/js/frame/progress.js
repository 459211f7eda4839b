// How far a job is, written into the page as it is told, without asking the server for the page again.
import { number } from "../common/format.js";
import { t, tn } from "../common/words.js";

function pace(rate) {
  if (!rate || rate <= 0) return "–";
  return rate >= 1 ? t("%(rate)s steps/s", { rate: number(Number(rate.toPrecision(3))) }) : t("%(rate)s s/step", { rate: number(Number((1 / rate).toPrecision(3))) });
}

const WRITE = {
  bar: (place, told) => { place.value = Math.min(told.step, told.total); },
  step: (place, told) => { place.textContent = String(told.step); },
  loss: (place, told) => { if (typeof told.loss === "number") place.setAttribute("value", String(told.loss)); },
  pace: (place, told) => { place.textContent = pace(told.rate); },
  eta: (place, told) => { if (typeof told.eta_s === "number") place.querySelector("data")?.setAttribute("value", String(told.eta_s)); },
  risk: (place, told, safe) => { place.textContent = tn("%(n)s step", "%(n)s steps", Math.max(0, told.step - safe)); },
};

// Returns whether the page had a place for it.
export function patch(id, told) {
  const places = document.querySelectorAll(`[data-progress-of="${CSS.escape(id)}"]`);
  let written = false;
  for (const place of places) {
    for (const part of place.querySelectorAll("[data-progress]")) {
      WRITE[part.dataset.progress](part, told, Number(place.dataset.safe || 0));
      written ||= part.dataset.progress === "step";
    }
  }
  return written;
}
