// A config from this computer: the browser reads the files and sends one JSON document, as the CLI's import does.
import { call, showProblem } from "../common/actions.js";
import { read } from "../common/exact.js";
import { t, tn } from "../common/words.js";

const MOST_BYTES = 4 * 1024 * 1024;
const SETTINGS = "config.json";
const DATALOADER = "multidatabackend.json";
const APART = "bundle.json";
const form = document.getElementById("import-form");
const [files, folder, name, told] = ["import-files", "import-folder", "import-name", "import-told"].map((id) => document.getElementById(id));
const button = form.querySelector("button:not([type=button])");
const place = form.querySelector("[data-problem]");
let bundle = null;

function refuse(title, detail) {
  throw { title, detail };
}

async function document_(file) {
  let value;
  try {
    value = read(await file.text());
  } catch {
    refuse(t("%(file)s is not JSON.", { file: file.name }), t("Fix the file and choose it again."));
  }
  return value;
}

async function object(file) {
  const value = await document_(file);
  if (value === null || typeof value !== "object" || Array.isArray(value)) refuse(t("%(file)s is not a config.", { file: file.name }), t("A config must be a JSON object."));
  return value;
}

const setting = (settings, key) => settings[key] ?? settings[`--${key}`];

// One file may be a whole config, or a trainer's settings; of several, config.json holds the settings.
async function bundleOf(list) {
  const shallow = list.filter((file) => !file.name.startsWith(".") && (file.webkitRelativePath || file.name).split("/").length <= 2);
  if (shallow.reduce((sum, file) => sum + file.size, 0) > MOST_BYTES) refuse(t("This is larger than 4 MiB."), t("Keep data out of the config and reference it by path."));
  const named = new Map(shallow.map((file) => [file.name, file]));
  const main = named.get(SETTINGS) ?? (shallow.length === 1 ? shallow[0] : null);
  if (!main) refuse(t("There is no config.json among these files."), t("Choose the folder that contains it."));
  const settings = await object(main);
  if ("settings" in settings) return settings;
  const loader = named.get(String(setting(settings, "data_backend_config") ?? "").split("/").at(-1)) ?? named.get(DATALOADER);
  const apart = named.has(APART) ? await object(named.get(APART)) : {};
  const others = shallow.filter((file) => ![main, loader, named.get(APART)].includes(file));
  const made = { ...apart, settings };
  if (loader) made.dataloader = await document_(loader);
  if (others.length) made.files = Object.fromEntries(await Promise.all(others.map(async (file) => [file.name, await file.text()])));
  return made;
}

function nameFor(list) {
  const [first] = list;
  const top = first.webkitRelativePath ? first.webkitRelativePath.split("/")[0] : first.name.replace(/\.json$/, "");
  return top.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-._]+|[-._]+$/g, "") || "config";
}

async function take(list) {
  bundle = null;
  button.disabled = true;
  told.textContent = "";
  showProblem(place, null);
  if (!list.length) return;
  try {
    bundle = await bundleOf(list);
    if (!name.value) name.value = nameFor(list);
    told.textContent = tn("%(n)s setting read.", "%(n)s settings read.", Object.keys(bundle.settings).length);
    button.disabled = false;
  } catch (problem) {
    if (!problem?.title) throw problem;
    showProblem(place, problem);
  }
}

files.addEventListener("change", () => take([...files.files]));
folder.addEventListener("change", () => take([...folder.files]));
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!bundle) return;
  button.disabled = true;
  try {
    const saved = await call("PUT", `/api/configs/${encodeURIComponent(name.value.trim())}`, bundle);
    location.assign(`/configs/${encodeURIComponent(saved.name)}`);
  } catch (problem) {
    if (!problem?.title) throw problem;
    showProblem(place, problem);
    button.disabled = false;
  }
});
