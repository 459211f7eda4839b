// JSON as people wrote it: 1.0 stays 1.0 and a long number keeps its digits, where the browser can do that.
const exact = typeof JSON.rawJSON === "function";

export function read(text) {
  return JSON.parse(text, (key, value, context) =>
    exact && typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? JSON.rawJSON(context.source) : value);
}

export function write(value) {
  return value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
}

export function isPlain(value) {
  return value === null || typeof value !== "object" || (exact && JSON.isRawJSON(value));
}

// A plain value in an input: strings as they are, all else as JSON.
export function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// What somebody typed: a number, true, false or null where it reads as one, else the text itself.
export function typed(text) {
  if (/^[[{"]/.test(text.trim())) return text;
  try {
    return read(text);
  } catch {
    return text;
  }
}

export function whereBroken(text) {
  try {
    read(text);
    return null;
  } catch (error) {
    const told = /line (\d+) column (\d+)/.exec(error.message);
    if (told) return { line: Number(told[1]), column: Number(told[2]) };
    const at = /position (\d+)/.exec(error.message);
    const before = text.slice(0, at ? Number(at[1]) : text.length).split("\n");
    return { line: before.length, column: before.at(-1).length + 1 };
  }
}
