// The page where a training is configured and sent off. `bundle` is the config as it stands; the form, the JSON and the
// data all show it, and after every change the server is asked what would become of it.
import { call, millionths, showProblem, zoned } from "../common/actions.js";
import { read, whereBroken, write } from "../common/exact.js";
import * as draft from "./train-draft.js";
import { setUp } from "./train-form.js";
import { toast } from "../common/toast.js";
import { t } from "../common/words.js";

const SOON_MS = 350;
const AGAIN_MS = 5000;
const LEAVES_MS = 10000;
const byId = (id) => document.getElementById(id);
const { bundle, known, options } = read(byId("train-data").textContent);
const cloud = byId("cloud");
const outlook = byId("outlook");
const place = cloud.querySelector("[data-problem]");
const REST = ["env", "secrets", "files", "resources", "watchdog"];
const broken = new Set();
let checked = null;
let timer = null;
let asked = 0;
let touched = false;
let askedAt = 0;

const showForm = setUp(known, options, (change) => {
  change(bundle.settings);
  show("settings-json");
});

function texts() {
  const rest = Object.fromEntries(REST.map((name) => [name, bundle[name] ?? {}]));
  return { "settings-json": write(bundle.settings), "dataloader-json": write(bundle.dataloader), "rest-json": write(rest) };
}

// Texts that follow the bundle are written anew; the one that somebody edits is left alone.
function show(...stale) {
  const made = texts();
  for (const id of stale) byId(id).value = made[id];
  showForm(bundle.trainer, bundle.settings);
  showMounts();
  soon();
}

const TAKES = {
  "settings-json": (value) => { bundle.settings = value; },
  "dataloader-json": (value) => { bundle.dataloader = value; },
  "rest-json": (value) => { for (const name of REST) bundle[name] = value[name] ?? {}; },
};

function takeText(id) {
  const field = byId(id);
  const text = field.value.trim();
  const wrong = byId(`${id}-wrong`);
  const at = text ? whereBroken(field.value) : null;
  const value = at ? undefined : text ? read(text) : id === "dataloader-json" ? null : {};
  const unfit = !at && id !== "dataloader-json" && (value === null || typeof value !== "object" || Array.isArray(value));
  wrong.hidden = !at && !unfit;
  wrong.textContent = at ? t("This is not JSON: look at line %(line)s, column %(column)s.", at) : unfit ? t("This must be an object: { … }") : "";
  if (at || unfit) {
    field.setAttribute("aria-invalid", "true");
    broken.add(id);
  } else {
    field.removeAttribute("aria-invalid");
    broken.delete(id);
    TAKES[id](value);
  }
  byId("form").disabled = broken.has("settings-json");
  byId("form-broken").hidden = !broken.has("settings-json");
  show();
}

for (const id of Object.keys(TAKES)) byId(id).addEventListener("input", () => takeText(id));

// Labels

function chip(label) {
  const made = document.createElement("span");
  made.className = "chip";
  made.setAttribute("role", "listitem");
  made.dataset.label = label;
  const code = document.createElement("code");
  code.textContent = label;
  const gone = document.createElement("button");
  gone.type = "button";
  gone.textContent = "✕";
  gone.setAttribute("aria-label", t("Remove %(key)s", { key: label }));
  gone.addEventListener("click", () => { made.remove(); byId("label").focus(); soon(); });
  made.append(code, gone);
  return made;
}

function labels() {
  return [...byId("labels").children].map((one) => {
    const cut = one.dataset.label.indexOf("=");
    return [one.dataset.label.slice(0, cut), one.dataset.label.slice(cut + 1)];
  });
}

function addLabel() {
  const field = byId("label");
  const text = field.value.trim();
  const fit = /^[^=]+=/.test(text);
  field.removeAttribute("aria-invalid");
  if (!text) return;
  if (!fit) return field.setAttribute("aria-invalid", "true");
  const key = text.slice(0, text.indexOf("="));
  for (const one of [...byId("labels").children]) if (one.dataset.label.startsWith(`${key}=`)) one.remove();
  byId("labels").append(chip(text));
  field.value = "";
  soon();
}

byId("labels").replaceChildren(...[...byId("labels").children].map((one) => chip(one.dataset.label)));
byId("add-label").addEventListener("click", addLabel);
byId("label").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  addLabel();
});

// Datasets

function showMounts() {
  const held = bundle.datasets ?? {};
  const names = new Map([...(byId("mount-id")?.options ?? [])].map((option) => [option.value, option.textContent]));
  byId("mounts").replaceChildren(...Object.entries(held).map(([name, id]) => {
    const line = document.createElement("div");
    line.className = "row";
    const code = document.createElement("code");
    code.textContent = `dataset://${name}`;
    const told = document.createElement("span");
    told.className = "grow wrap-any";
    told.textContent = names.get(id) ?? id;
    const gone = document.createElement("button");
    gone.type = "button";
    gone.className = "button quiet icon-only";
    gone.textContent = "✕";
    gone.setAttribute("aria-label", t("Remove %(key)s", { key: name }));
    gone.addEventListener("click", () => { delete bundle.datasets[name]; show(); });
    line.append(code, told, gone);
    return line;
  }));
}

byId("add-mount")?.addEventListener("click", () => {
  const name = byId("mount-name").value.trim();
  if (!name) return byId("mount-name").focus();
  bundle.datasets = { ...bundle.datasets, [name]: byId("mount-id").value };
  byId("mount-name").value = "";
  show();
});

// What is asked for

function number(name) {
  const text = cloud.elements.namedItem(name).value.trim();
  return text === "" ? undefined : Number(text);
}

function request() {
  const fields = cloud.elements;
  const hours = number("time_limit_h");
  const price = fields.namedItem("max_price").value.trim();
  const cost = fields.namedItem("max_cost").value.trim();
  const wishes = {
    config_name: byId("config-name").value.trim() || undefined,
    target: fields.namedItem("target").value,
    gpus: number("gpus"),
    nodes: number("nodes"),
    min_vram_gb: number("min_vram_gb"),
    max_price_micros: price === "" ? undefined : millionths(price),
    max_cost_micros: cost === "" ? undefined : millionths(cost),
    on_max_cost: cost === "" ? "stop" : fields.namedItem("on_max_cost").value,
    worker_labels: Object.fromEntries(labels()),
    priority: fields.namedItem("priority").value,
    not_before: zoned(fields.namedItem("not_before").value),
    time_limit_s: hours === undefined ? undefined : hours * 3600,
    on_time_limit: hours === undefined ? "fail" : fields.namedItem("on_time_limit").value,
    name: fields.namedItem("name").value.trim() || undefined,
    resume_from: fields.namedItem("resume_from").value.trim() || undefined,
    max_retries: number("max_retries"),
    retry_on_failure: fields.namedItem("retry_on_failure").checked,
  };
  return { ...wishes, config: { ...bundle, trainer: byId("trainer").value } };
}

function soon(wait = SOON_MS) {
  clearTimeout(timer);
  timer = setTimeout(check, wait);
}

// Returns what the server says of this request, or null. The page shows it unless a later one was asked about meanwhile.
async function check(wanted = broken.size ? null : request()) {
  clearTimeout(timer);
  timer = null;
  const turn = ++asked;
  askedAt = Date.now();
  let [told, refusal] = [null, null];
  try {
    if (wanted) told = await call("POST", "/train/check", wanted);
  } catch (problem) {
    if (!problem?.title) throw problem;
    refusal = problem;
  }
  if (turn === asked) {
    mark(told);
    if (refusal) showProblem(outlook, refusal);
  }
  return told;
}

const shown = new Map();

// A piece of the page as the server made it. What has not changed is left alone, and is not read out again.
function swap(element, html) {
  if (shown.get(element) === html) return;
  const wasOpen = element.querySelector("details")?.open;
  shown.set(element, html);
  const made = new DOMParser().parseFromString(html, "text/html");
  element.replaceChildren(...made.body.childNodes);
  if (wasOpen) element.querySelector("details")?.setAttribute("open", "");
}

function mark(told) {
  checked = told;
  unmark();
  for (const tab of document.querySelectorAll("[role=tab]")) tab.classList.remove("wrong");
  for (const id of broken) tabOf(byId(id)).classList.add("wrong");
  if (!told) {
    shown.delete(outlook);
    outlook.replaceChildren(Object.assign(document.createElement("p"), { className: "muted", textContent: t("Fix the marked fields to look for workers again.") }));
    return showSaving();
  }
  swap(outlook, told.outlook);
  if (told.sound) swap(byId("changes"), told.changes);
  for (const { path, text } of told.wrong) {
    const field = fieldOf(path);
    if (!field) continue;
    if (field.matches("input, select, textarea")) markField(field, text, true);
    tabOf(field)?.classList.add("wrong");
  }
  for (const { path, text } of told.odd) {
    const field = fieldOf(path);
    if (field?.matches("input, select, textarea")) markField(field, text, false);
  }
  showSaving();
}

function unmark() {
  for (const said of document.querySelectorAll(".train .field-error")) {
    const field = byId(said.dataset.of);
    const others = (field?.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id && id !== said.id);
    if (others.length) field.setAttribute("aria-describedby", others.join(" "));
    else field?.removeAttribute("aria-describedby");
    said.remove();
  }
  for (const field of document.querySelectorAll("[data-path][aria-invalid]")) if (!broken.has(field.id)) field.removeAttribute("aria-invalid");
}

// What is wrong or odd stands right below the field. Of two complaints about one field the first is shown.
function markField(field, text, isWrong) {
  const id = `${field.id}-said`;
  if (byId(id)) return;
  const said = document.createElement("span");
  Object.assign(said, { id, className: isWrong ? "wrong field-error" : "odd field-error", textContent: text });
  said.dataset.of = field.id;
  if (isWrong) field.setAttribute("aria-invalid", "true");
  const box = field.closest(".field");
  const described = (field.getAttribute("aria-describedby") ?? "").split(" ").filter(Boolean);
  field.setAttribute("aria-describedby", [...described, id].join(" "));
  box.append(said);
}

// Goes to the first field that is wrong, wherever it is folded away.
function goToWrong() {
  const field = broken.size ? byId([...broken][0]) : (checked?.wrong ?? []).map(({ path }) => fieldOf(path)).find((one) => one?.matches("input, select, textarea"));
  if (!field) return outlook.scrollIntoView({ block: "nearest" });
  const tab = tabOf(field);
  if (tab) open(tab);
  const fold = field.closest("details");
  if (fold) fold.open = true;
  return field.focus();
}

// The nearest field to a path: the setting itself, else the part of the config it stands in.
function fieldOf(path) {
  const whole = [...document.querySelectorAll(`[data-path="${CSS.escape(path)}"]`)].find((field) => !field.closest("[data-trainer][hidden]"));
  const part = path.split(/[.[]/)[0];
  return whole ?? document.querySelector(`[data-path="${CSS.escape(REST.includes(part) ? "rest" : part)}"]`);
}

function tabOf(field) {
  const pane = field.closest("[role=tabpanel]");
  return pane && document.querySelector(`[aria-controls="${pane.id}"]`);
}

// Saving

byId("drop-draft").addEventListener("click", () => {
  draft.drop();
  location.reload();
});

const named = () => byId("config-name").value.trim();

function showSaving() {
  const fit = Boolean(checked?.sound);
  byId("send").setAttribute("aria-disabled", String(!checked?.ok));
  const changed = fit && checked.changed;
  if (changed && touched) draft.keep({ name: named(), bundle });
  if (fit && !changed) draft.drop();
  if (fit) byId("saved-state").textContent = !named() ? t("Not saved") : changed ? t("Changed, not saved") : t("Version %(version)s", { version: checked.saves_as - 1 });
  if (!byId("save-choice")) return;
  byId("save-choice").hidden = !(changed && named() && checked.may_save);
  byId("save-text").textContent = changed ? t("Save it as version %(version)s of %(name)s", { version: checked.saves_as, name: named() }) : "";
  byId("save-only").disabled = !(changed && named());
}

async function save({ config_name: name, config }) {
  const saved = await call("PUT", `/api/configs/${encodeURIComponent(name)}`, config);
  toast(t("Saved %(name)s, version %(version)s.", { name: saved.name, version: saved.version }));
  return saved;
}

byId("save-only")?.addEventListener("click", () => trying(byId("save-only"), async () => { await save(request()); await check(); }));

// What is checked, saved and sent is what stood there when somebody sent it, whatever changes or is checked meanwhile.
async function send() {
  const wanted = broken.size ? null : read(JSON.stringify(request()));
  const verdict = await check(wanted);
  if (!verdict?.ok) return goToWrong();
  const { config, ...wishes } = wanted;
  const saves = Boolean(byId("save")?.checked && wishes.config_name && verdict.changed && verdict.may_save);
  const stored = wishes.config_name && (saves || !verdict.changed);
  const version = saves ? (await save(wanted)).version : verdict.saves_as - 1;
  const told = await call("POST", "/api/queue/submit", stored ? { ...wishes, config_version: version } : { ...wishes, config });
  draft.drop();
  location.assign(`/jobs/${encodeURIComponent(told.job_id)}`);
  await new Promise((done) => { setTimeout(done, LEAVES_MS); });
}

async function trying(button, work) {
  if (button.hasAttribute("aria-busy")) return;
  button.setAttribute("aria-busy", "true");
  showProblem(place, null);
  try {
    await work();
  } catch (problem) {
    if (!problem?.title) throw problem;
    showProblem(place, problem);
  } finally {
    button.removeAttribute("aria-busy");
    showSaving();
  }
}

cloud.addEventListener("submit", (event) => {
  event.preventDefault();
  addLabel();
  trying(byId("send"), send);
});
cloud.addEventListener("input", (event) => { if (event.target.id !== "label" && event.target.id !== "save") soon(); });
byId("config-name").addEventListener("input", () => soon());
byId("trainer").addEventListener("change", () => { bundle.trainer = byId("trainer").value; show(); });
byId("pick").addEventListener("change", () => { if (byId("pick").value) location.assign(byId("pick").value); });

// Tabs: arrows move, as in every list of tabs.
const tabs = [...document.querySelectorAll("[data-tabs] [role=tab]")];

function open(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", String(chosen));
    one.tabIndex = chosen ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = !chosen;
  }
}

for (const tab of tabs) {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    open(next);
    next.focus();
  });
}

// Workers come and go while somebody thinks.
document.addEventListener("fleet", (event) => {
  if (!["job", "worker"].includes(event.detail.type) || document.hidden || timer) return;
  soon(Math.max(SOON_MS, AGAIN_MS - (Date.now() - askedAt)));
});

for (const kind of ["input", "change", "click"]) document.querySelector(".train-config").addEventListener(kind, () => { touched = true; });

const kept = draft.kept();
if (kept) {
  Object.assign(bundle, kept.bundle);
  byId("config-name").value = kept.name;
  byId("trainer").value = bundle.trainer;
  byId("kept-draft").hidden = false;
}
show(...Object.keys(TAKES));
