// A worker that reads files and says their SHA-256, so that the page stays quick. A large one is read slice by slice.
import { hex, Sha256 } from "./sha256.js";

const AT_ONCE_BYTES = 8 * 1024 * 1024;
const own = self.crypto?.subtle;

async function digest(key, file) {
  if (own && file.size <= AT_ONCE_BYTES) {
    const bytes = await file.arrayBuffer();
    return hex(new Uint8Array(await own.digest("SHA-256", bytes)));
  }
  const sum = new Sha256();
  for (let at = 0; at < file.size; at += AT_ONCE_BYTES) {
    sum.update(new Uint8Array(await file.slice(at, at + AT_ONCE_BYTES).arrayBuffer()));
    self.postMessage({ key, read: Math.min(AT_ONCE_BYTES, file.size - at) });
  }
  return hex(sum.digest());
}

self.onmessage = async ({ data: { key, file } }) => {
  try {
    self.postMessage({ key, sha256: await digest(key, file) });
  } catch {
    // It was moved, changed or made unreadable since it was chosen.
    self.postMessage({ key, unreadable: true });
  }
};
