// The timeline by keyboard: each key follows the link that is there for everybody.
const KEYS = { "+": "closer", "=": "closer", "-": "wider", ArrowLeft: "earlier", ArrowRight: "later" };
const OURS = "#timeline";

document.addEventListener("keydown", (event) => {
  const timeline = event.target.closest?.(OURS);
  const step = KEYS[event.key];
  if (!timeline || !step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  document.querySelector(`[data-step="${step}"][href]`)?.click();
});

if (location.hash === OURS) document.querySelector(OURS)?.focus();
