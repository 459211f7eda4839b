// What every page needs. Modules that only some pages need are named by those pages.
import "./theme.js";
import "./format.js";
import "./copy.js";
import "./dialogs.js";
import "./actions.js";
import "./keys.js";
import "./palette.js";
import "./live.js";
import "./told.js";
