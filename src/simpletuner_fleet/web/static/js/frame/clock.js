// The server's clock: a laptop's own may be wrong by minutes.
let offset = 0;

export function heard(stamp) {
  const at = Date.parse(stamp);
  if (!Number.isNaN(at)) offset = at - Date.now();
}

export function now() {
  return Date.now() + offset;
}

heard(document.body?.dataset.now);
