// The guide's own script: a copy button at every block of code, and a search over titles, sections and code words.
import { t } from "../common/words.js";

for (const block of document.querySelectorAll("#guide-body .code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button quiet small";
  button.dataset.copy = "";
  button.textContent = t("Copy");
  block.append(button);
}

const field = document.getElementById("guide-search");
field?.addEventListener("input", () => {
  const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = document.getElementById("guide-found");
  let matches = 0;
  for (const entry of found.children) {
    const words = `${entry.textContent} ${entry.dataset.words ?? ""}`.toLowerCase();
    entry.hidden = !wanted.every((word) => words.includes(word));
    matches += entry.hidden ? 0 : 1;
  }
  found.hidden = !wanted.length || !matches;
  document.getElementById("guide-nothing").hidden = !wanted.length || matches > 0;
  document.getElementById("guide-body").hidden = wanted.length > 0;
});
