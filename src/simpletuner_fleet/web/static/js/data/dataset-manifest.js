// A folder as a dataset: which files there are, what keeps one out, and the list that gives the dataset its id.
// The server judges again, and by the same rules: core/training/checkpoint.py and core/configs/datasets.py.
import { t } from "../common/words.js";

const MOST_CHARS = 1024;
const MOST_NAME_BYTES = 255;
const FORMAT = "simpletuner-dataset/1";
const TRAINERS_INDEX = /^aspect_ratio_bucket_(indices|metadata)(_.*)?\.json$/;
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const encoder = new TextEncoder();

// SimpleTuner's own index holds full paths of the machine where it was made.
export const isTrainersIndex = (path) => TRAINERS_INDEX.test(path.split("/").at(-1));

export function complaint(path) {
  const names = path.split("/");
  if (!path || [...path].length > MOST_CHARS) return t("Its path is longer than %(n)s characters.", { n: MOST_CHARS });
  if (UNPRINTABLE.test(path) || path.includes("\\")) return t("Its name holds a character that cannot be printed, or a backslash.");
  if (names.some((name) => ["", ".", ".."].includes(name))) return t("Its path leads out of the folder.");
  if (names.some((name) => encoder.encode(name).length > MOST_NAME_BYTES)) return t("Its name is longer than %(n)s bytes.", { n: MOST_NAME_BYTES });
  return "";
}

// By code points, as the server sorts; the order of JavaScript itself differs beyond U+FFFF.
export function inOrder(one, other) {
  const [a, b] = [one.path, other.path];
  let at = 0;
  while (at < a.length && at < b.length && a.charCodeAt(at) === b.charCodeAt(at)) at += 1;
  if (at === a.length || at === b.length) return a.length - b.length;
  const [x, y] = [a.charCodeAt(at), b.charCodeAt(at)];
  const surrogate = (unit) => unit >= 0xd800 && unit <= 0xdfff;
  return surrogate(x) === surrogate(y) ? x - y : surrogate(x) ? 1 : -1;
}

// The one form of the list: the server refuses any other.
export function canonical(entries) {
  const files = [...entries].sort(inOrder).map(({ path, size, sha256 }) => ({ path, size, sha256 }));
  return encoder.encode(JSON.stringify({ files, format: FORMAT }));
}

export function nameFor(folder) {
  return folder.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-._]+|[-._]+$/g, "").slice(0, 128) || "data";
}

// Files as an input for folders gives them: the first name of each path is the chosen folder's.
export function chosen(files) {
  const top = files[0]?.webkitRelativePath.split("/")[0] ?? "";
  return { top, entries: files.map((file) => ({ file, path: file.webkitRelativePath.split("/").slice(1).join("/") || file.name })) };
}

const read = (entry) => new Promise((good, bad) => entry.file(good, bad));

async function* within(entry, path) {
  if (entry.isFile) {
    yield { file: await read(entry), path };
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // A browser gives a hundred at a time.
    const some = await new Promise((good, bad) => reader.readEntries(good, bad));
    if (!some.length) return;
    for (const one of some) yield* within(one, path ? `${path}/${one.name}` : one.name);
  }
}

// What was dropped: of a single folder its content, of several things each under its own name.
export async function dropped(transfer) {
  const roots = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const single = roots.length === 1 && roots[0].isDirectory;
  const entries = [];
  for (const root of roots) for await (const one of within(root, single ? "" : root.name)) entries.push(one);
  return { top: roots[0]?.name ?? "", entries };
}
