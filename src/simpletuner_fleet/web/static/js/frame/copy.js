// Copy buttons: the text beside them, and a word that it was done.
import { toast } from "../common/toast.js";
import { t } from "../common/words.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-link]");
  if (!button) return;
  const link = button.dataset.copyLink && new URL(button.dataset.copyLink, location).href;
  const text = link || button.dataset.copy || button.parentElement.querySelector("pre, code")?.textContent || "";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  toast(t("Copied."));
});
