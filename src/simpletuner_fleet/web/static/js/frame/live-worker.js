// One event stream for all tabs of this browser. Tabs say hello; what arrives goes to all of them.
import { orderOf, Pauses } from "../common/refusals.js";

const EVENTS = "/api/events";
const ports = new Set();
const pauses = new Pauses();
let source = null;
let waiting = null;
let last = 0;
let newest = 0;
let state = "connecting";
// Why the stream was refused, as the server says it.
let order = null;

const QUIET_MS = 35000;
const GIVE_UP_MS = 4000;
const LOOK_MS = 1000;
let tried = 0;

function tell(message) {
  for (const port of ports) port.postMessage(message);
}

function now() {
  return Date.now();
}

function told() {
  return { kind: "state", state, last, newest, order };
}

function become(next, why = null) {
  if (state === next) return;
  state = next;
  order = why;
  tell(told());
}

function open() {
  clearTimeout(waiting);
  waiting = null;
  if (source || !ports.size) return;
  tried = now();
  const stream = new EventSource(EVENTS);
  source = stream;
  const heard = (event) => {
    last = now();
    let data = {};
    try { data = JSON.parse(event.data); } catch { return; }
    newest = Number(event.lastEventId);
    pauses.holds();
    become("live");
    tell({ kind: "event", data, last });
  };
  for (const name of ["ready", "ping", "job", "worker", "audit", "config", "dataset", "pool", "machine"]) source.addEventListener(name, heard);
  source.onmessage = heard;
  source.onerror = () => {
    if (source !== stream) return;
    // After a cut a browser would connect again by itself, as often as it likes.
    const refused = stream.readyState === EventSource.CLOSED;
    drop();
    if (refused) askWhy();
    else again(0);
  };
}

function drop() {
  source.close();
  source = null;
  become("lost");
}

function again(waited) {
  waiting ??= setTimeout(open, Math.max(0, pauses.take() - waited));
}

async function askWhy() {
  const problem = await orderOf(EVENTS);
  // Meanwhile a tab may have come, or somebody may be back.
  if (source || waiting || !ports.size) return;
  if (!problem) return again(0);
  become("refused", problem);
  if (problem.status === 401) tell({ kind: "ended" });
}

function close() {
  source?.close();
  source = null;
  state = "connecting";
}

// A connection that was cut without a word looks open for ever: silence is what tells.
setInterval(() => {
  if (!source) return;
  const waited = now() - tried;
  const quiet = now() - Math.max(last, tried) > QUIET_MS;
  const stuck = state === "lost" && waited > GIVE_UP_MS;
  if (!quiet && !stuck) return;
  drop();
  again(waited);
}, LOOK_MS);

function join(port) {
  ports.add(port);
  port.onmessage = (event) => {
    if (event.data === "bye") {
      ports.delete(port);
      if (!ports.size) close();
    }
    // Whoever comes back to a tab may have logged in meanwhile, or have their network again.
    if (event.data === "back") open();
  };
  port.postMessage(told());
  open();
}

if ("onconnect" in self) {
  self.onconnect = (event) => join(event.ports[0]);
} else {
  // Without shared workers every visible tab has a stream of its own, made by the same code.
  join({ postMessage: (message) => self.postMessage(message), set onmessage(handler) { self.onmessage = handler; } });
}
