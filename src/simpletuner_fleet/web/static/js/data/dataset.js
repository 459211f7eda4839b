// A closer look at the pictures of one page of a dataset.
const dialog = document.getElementById("look");
const links = [...document.querySelectorAll("[data-look-at]")];
let at = 0;

function show() {
  const item = links[at].closest("li");
  const path = item.querySelector("[data-path]").textContent;
  const image = dialog.querySelector("img") || document.createElement("img");
  Object.assign(image, { src: links[at].href, alt: links[at].querySelector("img").alt });
  dialog.querySelector("#look-at").replaceChildren(image);
  dialog.querySelector("#look-title").textContent = path;
  dialog.querySelector("#look-caption").textContent = item.querySelector(".caption").textContent.trim();
  Object.assign(dialog.querySelector("a[download]"), { href: links[at].href, download: path.split("/").at(-1) });
  for (const button of dialog.querySelectorAll("[data-turn]")) button.disabled = !links[at + Number(button.dataset.turn)];
}

function turn(by) {
  if (!links[at + by]) return;
  at += by;
  show();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-look-at]");
  if (link && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    at = links.indexOf(link);
    show();
    dialog.showModal();
  }
  const button = event.target.closest("[data-turn]");
  if (button) turn(Number(button.dataset.turn));
});
// A button that becomes disabled loses the focus: the keys are heard wherever it went.
document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!dialog.open || !by) return;
  event.preventDefault();
  turn(by);
});
dialog.addEventListener("close", () => links[at].focus());
