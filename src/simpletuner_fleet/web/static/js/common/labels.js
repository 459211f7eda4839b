// Labels as chips: a key and a value are added, a chip is taken away; a hidden field carries them all as JSON.
import { t } from "./words.js";

function held(editor) {
  return JSON.parse(editor.querySelector("input[type=hidden]").value || "{}");
}

function chip(editor, key, value) {
  const one = document.createElement("span");
  one.className = "chip";
  const text = document.createElement("code");
  text.textContent = `${key}=${value}`;
  const gone = document.createElement("button");
  gone.type = "button";
  gone.textContent = "✕";
  gone.setAttribute("aria-label", t("Remove the label %(label)s", { label: `${key}=${value}` }));
  gone.addEventListener("click", () => {
    const labels = held(editor);
    delete labels[key];
    keep(editor, labels);
    editor.querySelector("[data-labels-key]").focus();
  });
  one.append(text, gone);
  return one;
}

function keep(editor, labels) {
  editor.querySelector("input[type=hidden]").value = JSON.stringify(labels);
  editor.querySelector("[data-labels-chips]").replaceChildren(...Object.entries(labels).map(([key, value]) => chip(editor, key, value)));
}

// Whatever was typed counts, whether its button was pressed or not. `key=value` in the first field is understood, too.
function take(editor) {
  const [keyField, valueField] = [editor.querySelector("[data-labels-key]"), editor.querySelector("[data-labels-value]")];
  let [key, value] = [keyField.value.trim(), valueField.value.trim()];
  if (!key) return false;
  if (!value && key.includes("=")) [key, value] = [key.slice(0, key.indexOf("=")).trim(), key.slice(key.indexOf("=") + 1).trim()];
  keep(editor, { ...held(editor), [key]: value });
  keyField.value = valueField.value = "";
  return true;
}

for (const editor of document.querySelectorAll("[data-labels]")) {
  keep(editor, held(editor));
  editor.querySelector("input[type=hidden]").addEventListener("change", () => keep(editor, held(editor)));
  editor.querySelector("[data-labels-add]").addEventListener("click", () => {
    take(editor);
    editor.querySelector("[data-labels-key]").focus();
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || !event.target.matches("[data-labels-key], [data-labels-value]")) return;
    if (take(editor)) event.preventDefault();
    editor.querySelector("[data-labels-key]").focus();
  });
  editor.closest("form").addEventListener("submit", () => take(editor), { capture: true });
}
