// Theme and language: remembered in a cookie, so that the server can render them without a flash.
import { caller, ofCaller } from "../common/caller.js";

const YEAR_S = 31536000;

function remember(name, value) {
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `${name}=${encodeURIComponent(value)}; path=/; max-age=${YEAR_S}; samesite=lax${secure}`;
}

document.addEventListener("click", async (event) => {
  const theme = event.target.closest("[data-theme-choice]");
  if (theme) {
    const chosen = theme.dataset.themeChoice;
    remember("simpletuner_theme", chosen);
    document.documentElement.dataset.theme = chosen;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      const on = button.dataset.themeChoice === chosen;
      button.setAttribute("aria-pressed", on);
      button.toggleAttribute("aria-current", on);
      if (on) button.setAttribute("aria-current", "true");
    }
    document.dispatchEvent(new CustomEvent("theme"));
  }
  const language = event.target.closest("[data-language]");
  if (language) {
    remember("simpletuner_lang", language.dataset.language);
    if (caller?.startsWith("u_")) {
      await fetch("/api/me", { method: "PATCH", headers: { "content-type": "application/json", ...ofCaller }, body: JSON.stringify({ language: language.dataset.language }) }).catch(() => {});
    }
    location.reload();
  }
});
