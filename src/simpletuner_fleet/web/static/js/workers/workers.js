// What changes with every heartbeat: ages and memory are asked for apart, for they are small and the page is not.
import { call } from "../common/actions.js";
import { isOrder } from "../common/refusals.js";
import { isLive, refresh } from "../frame/live.js";

const PULSE_MS = 15000;
const REFRESH_MS = 30000;

function show(place, pulse) {
  const time = place.querySelector("time");
  if (time && pulse?.last_heartbeat) time.dateTime = pulse.last_heartbeat;
}

async function pulse() {
  const places = [...document.querySelectorAll("[data-pulse] [data-heard]:not(details:not([open]) *)")];
  if (!isLive() || !places.length) return;
  let told;
  try {
    told = (await call("GET", `/api/admin/pulses?ids=${places.map((place) => place.dataset.heard).join(",")}`)).workers;
  } catch (problem) {
    if (isOrder(problem)) clearInterval(pulses);
    return;
  }
  for (const place of places) show(place, told[place.dataset.heard]);
  const used = Object.assign({}, ...Object.values(told).map((one) => one.memory_used_gb));
  for (const bar of document.querySelectorAll("progress[data-gpu]")) {
    const now = used[bar.dataset.gpu];
    if (typeof now === "number") bar.value = Math.min(now, bar.max);
  }
}

const pulses = setInterval(pulse, PULSE_MS);
if (document.querySelector("[data-refresh]")) setInterval(() => isLive() && refresh(), REFRESH_MS);
