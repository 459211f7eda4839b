// A folder from this computer: chosen or dropped, looked through, read, and sent.
import { showProblem } from "../common/actions.js";
import { chosen, complaint, dropped, inOrder, isTrainersIndex, nameFor } from "./dataset-manifest.js";
import { digests, send } from "./dataset-send.js";
import { bytes, duration } from "../common/format.js";
import { t, tn } from "../common/words.js";

const SHOWN = 20;
const SAID_EVERY_MS = 10000;
const DRAWN_EVERY_MS = 200;
const byId = (id) => document.getElementById(id);
const form = byId("upload");
const place = form.querySelector("[data-problem]");
const most = { files: Number(form.dataset.mostFiles), bytes: Number(form.dataset.mostBytes) };
let entries = [];
let stopping = null;

// A refusal that names files: what is wrong stands beside each of them.
function showFiles(title, files, next) {
  showProblem(place, { title, next });
  const list = document.createElement("ul");
  for (const [path, why] of files.slice(0, SHOWN)) {
    const line = document.createElement("li");
    const name = document.createElement("bdi");
    name.textContent = path;
    line.append(name, ` – ${why}`);
    list.append(line);
  }
  if (files.length > SHOWN) list.append(Object.assign(document.createElement("li"), { textContent: tn("and %(n)s more", "and %(n)s more", files.length - SHOWN) }));
  place.querySelector(".problem strong").after(list);
  place.scrollIntoView({ block: "nearest" });
}

// The paths are in order: the same one twice stands side by side.
function wrongWith({ path, file }, at, all) {
  if (path === all[at - 1]?.path) return t("Another file has the same path.");
  if (file.size > most.bytes) return t("It is larger than %(size)s, the most that one file can have.", { size: bytes(most.bytes) });
  return complaint(path);
}

function take({ top, entries: found }) {
  showProblem(place, null);
  const indices = found.filter((one) => isTrainersIndex(one.path));
  const wanted = found.filter((one) => !isTrainersIndex(one.path)).sort(inOrder);
  const wrong = wanted.map((one, at) => [one.path, wrongWith(one, at, wanted)]).filter(([, why]) => why);
  const size = wanted.reduce((sum, one) => sum + one.file.size, 0);
  const counted = tn("%(n)s file", "%(n)s files", wanted.length);
  const left_out = tn("%(n)s index file of the trainer is left out.", "%(n)s index files of the trainer are left out.", indices.length);
  byId("chosen").textContent = found.length ? `${counted} · ${bytes(size)}${indices.length ? ` · ${left_out}` : ""}` : "";
  if (top && !byId("dataset-name").value) byId("dataset-name").value = nameFor(top);
  entries = [];
  if (wrong.length) showFiles(t("Some files cannot be uploaded."), wrong, t("Rename them or take them out of the folder, then choose it again."));
  else if (wanted.length > most.files) showProblem(place, { title: t("These are too many files."), detail: t("A dataset can have at most %(n)s.", { n: most.files }), next: t("Pack small files into archives, or upload several datasets.") });
  else if (found.length && !wanted.length) showProblem(place, { title: t("This folder is empty.") });
  else entries = wanted;
  byId("start").disabled = !entries.length;
}

// What is done of how much, drawn a few times a second and said aloud now and then.
class Course {
  constructor(sentence) {
    Object.assign(this, { sentence, done: 0, total: 0, began: performance.now(), drawn: 0, said: performance.now() });
  }

  begin(total) {
    Object.assign(this, { done: 0, total, began: performance.now() });
    this.draw();
  }

  more(count) {
    this.done += count;
    if (performance.now() - this.drawn > DRAWN_EVERY_MS) this.draw();
  }

  draw() {
    const now = performance.now();
    const share = this.total ? Math.min(1, this.done / this.total) : 1;
    const passed_s = (now - this.began) / 1000;
    this.drawn = now;
    byId("doing").textContent = this.sentence(bytes(this.done), bytes(this.total));
    byId("bar").value = share;
    byId("pace").textContent = passed_s > 3 && this.done && share < 1 ? t("About %(time)s left at %(rate)s a second.", { time: duration((passed_s * (1 - share)) / share), rate: bytes(this.done / passed_s) }) : "";
    if (now - this.said < SAID_EVERY_MS) return;
    this.said = now;
    byId("said").textContent = byId("doing").textContent;
  }
}

function running(yes) {
  byId("choose").disabled = yes;
  byId("running").hidden = !yes;
  byId("start").hidden = yes;
  byId("cancel").hidden = !yes;
  (yes ? byId("cancel") : byId("start")).focus();
}

async function run() {
  stopping = new AbortController();
  const { signal } = stopping;
  const total = entries.reduce((sum, one) => sum + one.file.size, 0);
  const reading = new Course((done, all) => t("Reading the files: %(done)s of %(total)s", { done, total: all }));
  reading.begin(total);
  const unread = entries.filter((one) => !one.sha256);
  reading.done = total - unread.reduce((sum, one) => sum + one.file.size, 0);
  if (unread.length) await digests(unread, form.dataset.hasher, (count) => reading.more(count), signal);
  const sending = new Course((done, all) => t("Sending what the server does not have: %(done)s of %(total)s", { done, total: all }));
  const wishes = { name: byId("dataset-name").value.trim(), visibility: byId("visibility").value || null, team: byId("team")?.value || null };
  return send(entries, wishes, (bytes_) => sending.begin(bytes_), (count) => sending.more(count), signal);
}

// The server names a file by its place in the list, which is ordered as ours is.
function refused(problem) {
  const at = /^\$\.files\[(\d+)\]/.exec(problem.errors?.[0]?.path ?? "");
  if (problem.unreadable && problem.entry) {
    delete problem.entry.sha256;
    return showFiles(t("A file changed while it was being uploaded."), [[problem.entry.path, t("It can no longer be read as it was chosen.")]], t("Choose the folder again when nobody is writing there."));
  }
  if (at && entries[at[1]]) return showFiles(problem.title, [[entries[at[1]].path, problem.detail]], problem.next);
  showProblem(place, problem);
  return place.scrollIntoView({ block: "nearest" });
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!entries.length || stopping) return;
  showProblem(place, null);
  running(true);
  try {
    const made = await run();
    stopping = null;
    location.assign(`/datasets/${made.id.replace("sha256:", "")}`);
  } catch (problem) {
    const cancelled = stopping.signal.aborted;
    stopping.abort();
    stopping = null;
    running(false);
    if (cancelled) byId("said").textContent = byId("chosen").textContent = t("The upload was cancelled. What was sent is kept for a while: upload the same folder again to continue.");
    else if (problem?.title || problem?.unreadable) refused(problem);
    else throw problem;
  }
});

byId("cancel").addEventListener("click", () => stopping?.abort());
byId("folder").addEventListener("change", () => take(chosen([...byId("folder").files])));
addEventListener("beforeunload", (event) => { if (stopping) event.preventDefault(); });

const drop = byId("drop");
for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  if (stopping) return;
  byId("chosen").textContent = t("Looking through the folder…");
  try {
    take(await dropped(event.dataTransfer));
  } catch {
    take({ top: "", entries: [] });
    showProblem(place, { title: t("The files could not be read."), next: t("Choose the folder again when nobody is writing there.") });
  }
});
