// Copy buttons: the text beside them, and a word that it was done.
import { toast } from "../common/toast.js";
import { t } from "../common/words.js";

// Returns whether the clipboard has it. Without TLS there is only the old way, and behind an open dialog nothing can be selected.
export async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr";
    (button.closest("dialog") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    button.focus();
    return done;
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-link]");
  if (!button) return;
  const link = button.dataset.copyLink && new URL(button.dataset.copyLink, location).href;
  const beside = button.parentElement.querySelector("pre, code");
  const text = link || button.dataset.copy || beside?.textContent || "";
  if (await copied(text, button)) toast(t("Copied."));
  // Where it cannot be done, the text is at least selected.
  else if (beside) getSelection().selectAllChildren(beside);
});
