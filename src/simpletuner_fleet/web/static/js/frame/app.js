// What every page needs. Modules that only some pages need are named by those pages.
import "./theme.js";
import "../common/format.js";
import "./copy.js";
import "./dialogs.js";
import "../common/actions.js";
import "./keys.js";
import "./palette.js";
import "./live.js";
import "./told.js";

// In a narrow window the tabs scroll sideways: the one that is open is in sight.
const open = document.querySelector(".tabs [aria-current=page]");
if (open) open.parentElement.scrollLeft += open.getBoundingClientRect().right - open.parentElement.getBoundingClientRect().right + 16;
