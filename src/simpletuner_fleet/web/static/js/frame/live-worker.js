// One event stream for all tabs of this browser. Tabs say hello; what arrives goes to all of them.
const ports = new Set();
let source = null;
let last = 0;
let newest = 0;
let state = "connecting";

const QUIET_MS = 35000;
const RETRY_MS = 2000;
const GIVE_UP_MS = 4000;
const LOOK_MS = 1000;
let tried = 0;

function tell(message) {
  for (const port of ports) port.postMessage(message);
}

function now() {
  return Date.now();
}

function become(next) {
  if (state === next) return;
  state = next;
  tell({ kind: "state", state, last, newest });
}

function open() {
  if (source) return;
  tried = now();
  source = new EventSource("/api/events");
  const heard = (event) => {
    last = now();
    let data = {};
    try { data = JSON.parse(event.data); } catch { return; }
    newest = Number(event.lastEventId);
    become("live");
    tell({ kind: "event", data, last });
  };
  for (const name of ["ready", "ping", "job", "worker", "audit", "config", "dataset", "pool", "machine"]) source.addEventListener(name, heard);
  source.onmessage = heard;
  source.onerror = () => {
    become("lost");
    if (source && source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(again, RETRY_MS);
    }
  };
}

// A stream that was refused does not say why: whether the session has ended is asked for apart.
async function again() {
  if (!ports.size || source) return;
  const answer = await fetch("/api/whoami", { headers: { accept: "application/json" } }).catch(() => null);
  if (answer?.status === 401) tell({ kind: "ended" });
  if (ports.size) open();
}

function close() {
  source?.close();
  source = null;
  state = "connecting";
}

// A connection that was cut without a word looks open for ever: silence is what tells.
setInterval(() => {
  if (!source) return;
  const quiet = now() - Math.max(last, tried) > QUIET_MS;
  const stuck = state === "lost" && now() - tried > GIVE_UP_MS;
  if (!quiet && !stuck) return;
  source.close();
  source = null;
  become("lost");
  open();
}, LOOK_MS);

function join(port) {
  ports.add(port);
  port.onmessage = (event) => {
    if (event.data === "bye") {
      ports.delete(port);
      if (!ports.size) close();
    } else {
      port.postMessage({ kind: "state", state, last, newest });
    }
  };
  port.postMessage({ kind: "state", state, last, newest });
  open();
}

if ("onconnect" in self) {
  self.onconnect = (event) => join(event.ports[0]);
} else {
  // Without shared workers every visible tab has a stream of its own, made by the same code.
  join({ postMessage: (message) => self.postMessage(message), set onmessage(handler) { self.onmessage = handler; } });
}
