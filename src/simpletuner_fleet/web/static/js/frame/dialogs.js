// Native dialogs and menus: opened by data-opens="id", closed by data-closes, Escape or a click beside them.
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.opens);
    dialog?.showModal();
    dialog?.dispatchEvent(new CustomEvent("opened", { detail: { opener } }));
  }
  if (event.target.closest("[data-closes]")) event.target.closest("dialog")?.close();
  if (event.target instanceof HTMLDialogElement && event.target.open && !event.target.matches("[data-stays]")) event.target.close();
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target) || event.target.closest(".items a, .items button")) menu.open = false;
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});
