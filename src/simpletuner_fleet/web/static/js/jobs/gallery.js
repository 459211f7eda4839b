// Pictures of trainings: a slider that goes through the steps in all frames at once, and a closer look at one.
import { t } from "../common/words.js";

const lightbox = document.getElementById("lightbox");
let wanted = null;
let looked = null;

const frames = () => [...document.querySelectorAll("[data-frame]")];

function pictures(frame) {
  return [...frame.querySelectorAll("ol > li")].map((one) => ({ step: one.dataset.step === "" ? null : Number(one.dataset.step), url: one.dataset.url, name: one.dataset.name }));
}

function caption(frame, picture) {
  const title = frame.querySelector("figcaption strong").textContent;
  const prompt = frame.querySelector(".prompt")?.textContent || title;
  const run = frame.dataset.run ? `${frame.dataset.run} · ` : "";
  return picture.step === null ? `${run}${prompt}` : `${run}${t("%(prompt)s at step %(step)s", { prompt, step: picture.step })}`;
}

// The newest that is not newer than the slider's step; before the first there is the first.
function at(frame, step) {
  const all = pictures(frame);
  return (step === null ? null : all.filter((one) => (one.step ?? 0) <= step).at(-1) || all[0]) || all.at(-1);
}

function write(frame, picture) {
  const image = frame.querySelector("img");
  if (image.getAttribute("src") !== picture.url) image.src = picture.url;
  image.alt = caption(frame, picture);
  frame.querySelector("[data-picture]").href = picture.url;
  frame.querySelector("[data-step]").textContent = picture.step === null ? "" : t("step %(step)s", { step: picture.step });
}

function show() {
  const steps = [...new Set(frames().flatMap(pictures).map((one) => one.step).filter((step) => step !== null))].sort((a, b) => a - b);
  for (const bar of document.querySelectorAll(".gallery-bar")) {
    bar.hidden = steps.length < 2;
    const slider = bar.querySelector("[data-gallery-step]");
    slider.max = String(steps.length - 1);
    const place = wanted === null ? steps.length - 1 : Math.max(0, steps.filter((step) => step <= wanted).length - 1);
    slider.value = String(place);
    slider.setAttribute("aria-valuetext", t("step %(step)s", { step: steps[place] ?? "" }));
    bar.querySelector("output").textContent = t("step %(step)s", { step: steps[place] ?? "" });
    slider.oninput = () => {
      const chosen = Number(slider.value);
      wanted = chosen === steps.length - 1 ? null : steps[chosen];
      show();
    };
  }
  for (const frame of frames()) write(frame, at(frame, wanted));
}

function look() {
  const [frame, number] = looked;
  const picture = pictures(frame)[number];
  lightbox.querySelector("#lightbox-title").textContent = caption(frame, picture);
  const image = lightbox.querySelector("img") || document.createElement("img");
  Object.assign(image, { src: picture.url, alt: caption(frame, picture) });
  if (!image.parentNode) lightbox.querySelector("#lightbox-title").after(image);
  Object.assign(lightbox.querySelector("a[download]"), { href: picture.url, download: picture.name });
  const place = frames().indexOf(frame);
  const can = { earlier: number > 0, later: number < pictures(frame).length - 1, before: place > 0, after: place < frames().length - 1 };
  for (const button of lightbox.querySelectorAll("[data-look]")) button.disabled = !can[button.dataset.look];
}

function turn(where) {
  const [frame, number] = looked;
  const picture = pictures(frame)[number];
  const aside = { before: -1, after: 1 }[where];
  const other = aside ? frames()[frames().indexOf(frame) + aside] : frame;
  const found = !other ? -1 : aside ? pictures(other).findIndex((one) => one.url === at(other, picture.step).url) : number + (where === "later" ? 1 : -1);
  if (!other || !pictures(other)[found]) return;
  looked = [other, found];
  look();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-picture]");
  if (link && lightbox && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    const frame = link.closest("[data-frame]");
    looked = [frame, pictures(frame).findIndex((one) => one.url === link.getAttribute("href"))];
    look();
    lightbox.showModal();
  }
  const button = event.target.closest("[data-look]");
  if (button) turn(button.dataset.look);
});
// A button that becomes disabled loses the focus: the keys are heard wherever it went.
document.addEventListener("keydown", (event) => {
  if (!lightbox?.open) return;
  const where = { ArrowLeft: "earlier", ArrowRight: "later", ArrowUp: "before", ArrowDown: "after" }[event.key];
  if (!where) return;
  event.preventDefault();
  turn(where);
});
document.addEventListener("refreshed", show);
show();
