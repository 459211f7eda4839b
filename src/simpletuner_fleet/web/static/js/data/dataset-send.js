// How a folder travels: asked after, sent in parts from the byte the server names, sealed last. The same protocol as `simpletuner data push`.
import { hex, Sha256 } from "./sha256.js";
import { canonical } from "./dataset-manifest.js";
import { ofCaller } from "../common/caller.js";
import { sessionEnded } from "../frame/session.js";
import { inOurFormat } from "../common/refusals.js";
import { t } from "../common/words.js";

const PART_BYTES = 16 * 1024 * 1024;
const ASKED_AT_ONCE = 5000;
const SENT_AT_ONCE = 4;
const PAUSES_MS = [500, 1000, 2000, 4000, 8000, 16000];
const ROUNDS = 3;
const FOR_A_MOMENT = ["store_unavailable", "not_leader"];
const OBJECTS = "/api/data/objects";

function pause(ms, signal) {
  return new Promise((good, bad) => {
    const timer = setTimeout(good, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); bad(signal.reason); }, { once: true });
  });
}

// An answer that is not in our own format comes from something in between, and says nothing about the request: it is asked again.
async function once(method, path, body, signal) {
  const json = !(body instanceof Blob);
  const headers = { ...ofCaller, accept: "application/json", "content-type": json ? "application/json" : "application/octet-stream" };
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: json ? JSON.stringify(body) : body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    // A file that cannot be read any more ends a request as a broken line does.
    if (!json && !(await readable(body))) throw { unreadable: true };
    return null;
  }
  const told = (answer.headers.get("content-type") || "").includes("json") ? await answer.json().catch(() => null) : null;
  if (told === null || (!answer.ok && !inOurFormat(told)) || answer.status === 429 || FOR_A_MOMENT.includes(told.code)) return null;
  if (answer.status === 401) sessionEnded(told);
  if (!answer.ok) throw told;
  return told;
}

const readable = (blob) => blob.slice(0, 1).arrayBuffer().then(() => true, () => false);

async function ask(method, path, body, signal) {
  for (const ms of [...PAUSES_MS, null]) {
    const told = await once(method, path, body, signal);
    if (told) return told;
    if (ms === null) break;
    await pause(ms, signal);
  }
  throw { title: t("The server did not respond."), detail: t("The connection is lost, or the server is restarting."), next: t("Start the upload again: it continues where it stopped.") };
}

// Hashes with some workers at once. `told` hears of bytes that were read.
export async function digests(entries, script, told, signal) {
  const count = Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 2) - 1, entries.length));
  const workers = Array.from({ length: count }, () => new Worker(script, { type: "module" }));
  try {
    await new Promise((good, bad) => {
      let next = 0;
      let left = entries.length;
      signal.addEventListener("abort", () => bad(signal.reason), { once: true });
      const feed = (worker) => {
        if (next < entries.length) worker.postMessage({ key: next, file: entries[next++].file });
      };
      for (const worker of workers) {
        let told_of = 0;
        worker.onerror = () => bad({ title: t("The files could not be read."), detail: t("This browser did not start the script that reads them.") });
        worker.onmessage = ({ data: { key, read, sha256, unreadable } }) => {
          if (unreadable) return bad({ unreadable: true, entry: entries[key] });
          told(read ?? entries[key].file.size - told_of);
          told_of = read === undefined ? 0 : told_of + read;
          if (read !== undefined) return undefined;
          entries[key].sha256 = sha256;
          left -= 1;
          return left ? feed(worker) : good();
        };
        feed(worker);
      }
    });
  } finally {
    for (const worker of workers) worker.terminate();
  }
}

async function missing(contents, signal) {
  const all = [...contents].map(([sha256, { size }]) => ({ sha256, size }));
  const found = [];
  for (let at = 0; at < all.length; at += ASKED_AT_ONCE) {
    found.push(...(await ask("POST", OBJECTS, { objects: all.slice(at, at + ASKED_AT_ONCE) }, signal)).missing);
  }
  return new Map(found.map(({ sha256, offset }) => [sha256, offset]));
}

async function sendOne(sha256, blob, entry, from, told, signal) {
  let offset = from;
  for (;;) {
    const part = blob.slice(offset, offset + PART_BYTES);
    let answer;
    try {
      answer = await ask("PUT", `${OBJECTS}/${sha256}?offset=${offset}&size=${blob.size}`, part, signal);
    } catch (problem) {
      const changed = problem?.unreadable || problem?.code === "digest_mismatch";
      throw changed && entry ? { unreadable: true, entry } : problem;
    }
    told(Math.max(0, answer.next_offset - offset));
    if (answer.complete) return;
    offset = answer.next_offset;
  }
}

async function sendMissing(contents, id, begins, told, signal) {
  const offsets = await missing(contents, signal);
  begins([...offsets].reduce((sum, [sha256, offset]) => sum + contents.get(sha256).size - offset, 0));
  const queue = [...offsets].filter(([sha256]) => sha256 !== id);
  const send = ([sha256, offset]) => sendOne(sha256, contents.get(sha256).blob, contents.get(sha256).entry, offset, told, signal);
  const line = async () => { while (queue.length) await send(queue.shift()); };
  await Promise.all(Array.from({ length: SENT_AT_ONCE }, line));
  if (offsets.has(id)) await send([id, offsets.get(id)]);
}

// Entries have a path, a file and its SHA-256. `begins` is told how many bytes are to be sent, `told` of each that was.
export async function send(entries, wishes, begins, told, signal) {
  const manifest = canonical(entries.map(({ path, file, sha256 }) => ({ path, size: file.size, sha256 })));
  const id = hex(new Sha256().update(manifest).digest());
  const contents = new Map(entries.map((entry) => [entry.sha256, { size: entry.file.size, blob: entry.file, entry }]));
  contents.set(id, { size: manifest.length, blob: new Blob([manifest]), entry: null });
  for (let round = 1; ; round += 1) {
    await sendMissing(contents, id, begins, told, signal);
    try {
      return await ask("POST", "/api/data", { ...wishes, id: `sha256:${id}` }, signal);
    } catch (problem) {
      // What waited too long for its list may have been let go meanwhile.
      if (problem?.code !== "objects_missing" || round === ROUNDS) throw problem;
    }
  }
}
