// The log of a job: opens at its end, loads older lines on the way up, follows while it is seen, searches on the server.
import { call } from "../common/actions.js";
import { get, put } from "../common/kept.js";
import { copied } from "../frame/copy.js";
import { LogLines } from "./log-lines.js";
import { orderOf, Pauses, said } from "../common/refusals.js";
import { toast } from "../common/toast.js";
import { t, tn } from "../common/words.js";

const PAGE_LINES = 1000;
const NEAR_PX = 60;
const DRAW_EVERY_MS = 250;
const MOST_MATCHES = 1000;
const ERROR_MARK = "Traceback (most recent call last)";

function attemptsTold() {
  return document.getElementById("log-attempts").dataset.attempts.split(",").filter(Boolean).map(Number);
}

function LogViewer(place) {
  const job = place.dataset.job;
  const attempts = attemptsTold();
  const state = { attempt: attempts.at(-1) || null, newest: true, rank: 0, end: 0, size: 0, loading: false, following: true, fresh: 0, source: null, ended: false };
  const search = { matches: [], at: -1, done: true, text: "", turn: 0 };
  const ui = build();
  const lines = new LogLines(ui.box);
  const pauses = new Pauses();
  let top = 0;
  // Which part of which log is wanted, counted, and which one is on screen: an answer that comes after another part was
  // asked for is not drawn.
  let wanted = 0;
  let drawn = 0;

  function address(extra) {
    const query = new URLSearchParams({ rank: String(state.rank), ...extra });
    if (state.attempt) query.set("attempt", String(state.attempt));
    return `/api/jobs/${encodeURIComponent(job)}/logs?${query}`;
  }

  async function page(extra) {
    return call("GET", address({ lines: String(PAGE_LINES), ...extra }));
  }

  async function openAtEnd() {
    const mine = wanted += 1;
    stopFollowing();
    say(t("Loading log…"));
    const told = await page({});
    if (mine !== wanted) return;
    show(told);
    lines.append(told.lines);
    state.end = told.end;
    stayAtEnd();
    say("");
    if (!told.ended) return follow();
    empty();
    await goOn();
  }

  function show(told) {
    drawn = wanted;
    lines.clear();
    state.size = told.size;
    state.ended = told.ended;
    refused("");
    ui.gap.hidden = !told.gap_bytes;
    if (told.gap_bytes) ui.gap.textContent = t("%(n)s bytes are missing in the middle: the log exceeded its size limit.", { n: told.gap_bytes });
    ui.raw.href = address({});
  }

  function empty() {
    if (!lines.count) say(attempts.length ? t("No output.") : t("The job has not started: there is no log yet."));
  }

  async function openAround(offset) {
    const stands = drawn === wanted;
    const mine = wanted += 1;
    stopFollowing();
    let [before, after] = [null, null];
    try {
      [before, after] = [await page({ before: String(offset), lines: "300" }), await page({ offset: String(offset), lines: "700" })];
    } catch (problem) {
      if (stands && mine === wanted) drawn = wanted;
      throw problem;
    }
    if (mine !== wanted) return;
    show(after);
    lines.append([...before.lines, ...after.lines]);
    lines.cutAtEnd = after.end < after.size || !after.ended;
    state.end = after.end;
    pinned(false);
    goTo(offset);
  }

  function goTo(offset) {
    for (const line of ui.box.querySelectorAll(".now")) line.classList.remove("now");
    const line = document.getElementById(`L${offset}`);
    line?.classList.add("now");
    line?.scrollIntoView({ block: "center" });
  }

  async function older() {
    const [first, mine] = [lines.first, wanted];
    if (state.loading || !first || drawn !== wanted) return;
    state.loading = true;
    try {
      const told = await page({ before: String(first) });
      if (mine !== wanted) return;
      const height = ui.scroll.scrollHeight;
      const top = ui.scroll.scrollTop;
      lines.prepend(told.lines);
      if (lines.cutAtEnd) stopFollowing();
      ui.scroll.scrollTop = top + ui.scroll.scrollHeight - height;
    } finally {
      state.loading = false;
    }
  }

  async function newer() {
    if (state.loading || !lines.cutAtEnd || drawn !== wanted) return;
    const mine = wanted;
    state.loading = true;
    try {
      const last = ui.box.lastElementChild;
      const told = await page({ offset: String(Number(last.dataset.offset)) });
      if (mine !== wanted) return;
      last.remove();
      lines.append(told.lines);
      state.end = told.end;
      if (told.end >= told.size) {
        lines.cutAtEnd = false;
        if (!told.ended) follow();
      }
    } finally {
      state.loading = false;
    }
  }

  function follow() {
    if (state.source || document.hidden || lines.cutAtEnd || drawn !== wanted) return;
    const waiting = [];
    let drawing = false;
    const followed = address({ follow: "true", offset: String(state.end) });
    const source = state.source = new EventSource(followed);
    source.onopen = () => { pauses.holds(); refused(""); };
    source.addEventListener("log", (event) => {
      waiting.push(JSON.parse(event.data));
      if (drawing) return;
      drawing = true;
      setTimeout(() => {
        drawing = false;
        // What came of another attempt, or will come again from where the log is, is not drawn.
        if (source === state.source) draw(waiting.splice(0));
      }, DRAW_EVERY_MS);
    });
    source.addEventListener("end", () => {
      if (waiting.length) draw(waiting.splice(0));
      stopFollowing();
      state.ended = true;
      empty();
      guarded(goOn)();
    });
    source.onerror = () => {
      if (source !== state.source) return;
      const wasRefused = source.readyState === EventSource.CLOSED;
      if (waiting.length) draw(waiting.splice(0));
      stopFollowing();
      goOnFollowing(wasRefused ? followed : null);
    };
  }

  // A browser would connect again by itself after a cut, as often as it likes, and not after a refusal.
  async function goOnFollowing(refusedAddress) {
    const mine = wanted;
    const order = refusedAddress ? await orderOf(refusedAddress) : null;
    if (mine !== wanted) return;
    if (order) refused(t("This log is not followed: %(why)s", { why: said(order) }));
    else setTimeout(() => { if (mine === wanted && !state.ended) follow(); }, pauses.take());
  }

  function refused(why) {
    ui.refused.textContent = why;
    ui.refused.hidden = !why;
  }

  function draw(pieces) {
    if (!state.following && lines.isFull) {
      // What somebody reads is not pushed out by what comes: the way down loads it.
      lines.cutAtEnd = true;
      stopFollowing();
      return;
    }
    const offsets = pieces.at(-1).offset;
    let added = 0;
    for (const piece of pieces) added += lines.stream(piece.text, piece.offset, piece.at);
    state.end = offsets;
    say("");
    if (!state.following) {
      state.fresh += added;
      ui.jump.hidden = false;
      ui.jump.textContent = tn("Jump to live (%(n)s new)", "Jump to live (%(n)s new)", state.fresh);
    }
  }

  function stopFollowing() {
    state.source?.close();
    state.source = null;
  }

  function pinned(on) {
    state.following = on;
    ui.follow.setAttribute("aria-pressed", String(on));
    if (on) {
      state.fresh = 0;
      ui.jump.hidden = true;
    }
  }

  async function find(text) {
    const turn = search.turn += 1;
    search.text = text;
    search.matches = [];
    search.at = -1;
    search.done = !text;
    counted(0);
    try {
      await look(text, turn);
    } catch (problem) {
      if (turn === search.turn) {
        search.text = "";
        counted(1);
      }
      throw problem;
    }
  }

  async function look(text, turn) {
    let from = 0;
    while (turn === search.turn && !search.done && search.matches.length < MOST_MATCHES) {
      const query = new URLSearchParams({ q: text, regex: String(ui.regex.checked), from: String(from), limit: "200", rank: String(state.rank) });
      if (state.attempt) query.set("attempt", String(state.attempt));
      const told = await call("GET", `/api/jobs/${encodeURIComponent(job)}/logs/search?${query}`);
      if (turn !== search.turn) return;
      search.matches.push(...told.matches);
      search.done = told.done;
      from = told.next;
      counted(told.size ? from / told.size : 1);
      if (search.at < 0 && search.matches.length) await step(1);
    }
    if (turn === search.turn) counted(1);
  }

  function counted(share) {
    const many = search.matches.length;
    const more = search.done ? "" : many >= MOST_MATCHES ? "+" : ` · ${Math.round(share * 100)} %`;
    ui.count.textContent = !search.text ? "" : many ? t("%(at)s of %(all)s", { at: search.at + 1, all: `${many}${more}` }) : search.done ? t("Not found.") : t("Searching…");
    ui.previous.disabled = ui.next.disabled = many === 0;
  }

  async function step(by) {
    if (!search.matches.length) return;
    search.at = (search.at + by + search.matches.length) % search.matches.length;
    const { offset } = search.matches[search.at];
    pinned(false);
    if (document.getElementById(`L${offset}`)) goTo(offset);
    else await openAround(offset);
    counted(1);
  }

  function say(text) {
    ui.said.textContent = text;
    ui.said.hidden = !text;
  }

  function guarded(action) {
    return async (...given) => {
      try {
        await action(...given);
      } catch (problem) {
        if (!problem?.title) throw problem;
        toast(said(problem), true);
      }
    };
  }

  function build() {
    place.replaceChildren(document.getElementById("log-template").content.cloneNode(true));
    const pick = (name) => place.querySelector(`[data-log-${name}]`);
    const found = Object.fromEntries(["attempt", "rank", "search", "regex", "count", "previous", "next", "error", "wrap", "times", "follow", "aloud", "copy", "raw", "scroll", "box", "jump", "gap", "refused", "said"].map((name) => [name, pick(name)]));
    offer(found.attempt, attempts);
    return found;
  }

  function offer(select, numbers) {
    select.prepend(...[...numbers].reverse().map((number) => new Option(t("Attempt %(number)s", { number }), String(number))));
  }

  // Who follows a log to its end goes on with that of the next attempt; who reads it stays where they are.
  async function takeNewAttempts() {
    const fresh = attemptsTold().filter((number) => !attempts.includes(number));
    if (!fresh.length) return;
    attempts.push(...fresh);
    offer(ui.attempt, fresh);
    ui.attempt.value = String(state.attempt);
    await goOn();
  }

  // The end of a log may be heard of before or after the next attempt is.
  async function goOn() {
    const isOver = drawn === wanted && (state.ended || state.attempt === null);
    if (!state.following || !state.newest || !isOver || state.attempt === (attempts.at(-1) ?? null)) return;
    state.attempt = attempts.at(-1);
    ui.attempt.value = String(state.attempt);
    await reopen();
  }

  function wire() {
    document.addEventListener("refreshed", guarded(takeNewAttempts));
    ui.attempt.addEventListener("change", guarded(async () => { state.attempt = Number(ui.attempt.value); state.newest = state.attempt === attempts.at(-1); await reopen(); }));
    ui.rank.addEventListener("change", guarded(async () => { state.rank = Number(ui.rank.value) || 0; await reopen(); }));
    let typing = null;
    ui.search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(guarded(() => find(ui.search.value.trim())), 300); });
    ui.search.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); guarded(step)(event.shiftKey ? -1 : 1); } });
    ui.regex.addEventListener("change", guarded(() => find(ui.search.value.trim())));
    ui.previous.addEventListener("click", guarded(() => step(-1)));
    ui.next.addEventListener("click", guarded(() => step(1)));
    ui.error.addEventListener("click", guarded(async () => { ui.search.value = ERROR_MARK; ui.regex.checked = false; await find(ERROR_MARK); }));
    ui.wrap.addEventListener("change", () => { place.classList.toggle("nowrap", !ui.wrap.checked); put("log-wrap", ui.wrap.checked ? "on" : "off"); });
    ui.times.addEventListener("change", () => { lines.showTimes(ui.times.value); put("log-times", ui.times.value); });
    ui.follow.addEventListener("click", guarded(async () => { if (state.following) pinned(false); else await toEnd(); }));
    ui.jump.addEventListener("click", guarded(toEnd));
    ui.aloud.addEventListener("change", () => ui.box.setAttribute("aria-live", ui.aloud.checked ? "polite" : "off"));
    ui.copy.addEventListener("click", async () => { if (await copied(lines.text(), ui.copy)) toast(t("Copied.")); });
    ui.scroll.addEventListener("scroll", () => {
      // Only somebody's way up ends the following: new lines move the end away as well.
      const upwards = ui.scroll.scrollTop < top;
      top = ui.scroll.scrollTop;
      const below = ui.scroll.scrollHeight - ui.scroll.scrollTop - ui.scroll.clientHeight;
      if (ui.scroll.scrollTop < NEAR_PX * 4) guarded(older)();
      if (below < NEAR_PX * 4) guarded(newer)();
      if (upwards && below > NEAR_PX && state.following) pinned(false);
      else if (below < NEAR_PX / 4 && !state.following && !lines.cutAtEnd) pinned(true);
    }, { passive: true });
    // A line is as high as it turns out to be once it is drawn: the end is where it then is. Where that is further up,
    // the browser tells of it as of any way up, and later, when more lines may have come: so the place is noted here.
    new ResizeObserver(() => { if (state.following) stayAtEnd(); }).observe(ui.box);
    document.addEventListener("visibilitychange", () => (document.hidden ? stopFollowing() : !state.ended && !lines.cutAtEnd && follow()));
  }

  function stayAtEnd() {
    ui.scroll.scrollTop = ui.scroll.scrollHeight;
    top = ui.scroll.scrollTop;
  }

  async function toEnd() {
    if (lines.cutAtEnd || drawn !== wanted) await openAtEnd();
    pinned(true);
    stayAtEnd();
  }

  async function reopen() {
    pinned(true);
    await openAtEnd();
    if (search.text) await find(search.text);
  }

  this.start = guarded(async () => {
    wire();
    ui.wrap.checked = get("log-wrap", "on") === "on";
    place.classList.toggle("nowrap", !ui.wrap.checked);
    ui.times.value = get("log-times", "off");
    lines.showTimes(ui.times.value);
    counted(1);
    const named = /^#L(\d+)$/.exec(location.hash);
    pinned(!named);
    if (named) await openAround(Number(named[1]));
    else await openAtEnd();
    place.dataset.ready = "true";
  });
}

const root = document.getElementById("log");
if (root) new LogViewer(root).start();
