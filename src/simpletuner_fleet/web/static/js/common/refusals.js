// What is asked again, and when. A refusal in our own format is an order: it says why, and the same is not asked again by
// itself. All else is weather, such as a cut line or an answer of something in between: it is asked again, after pauses that grow.
const ANSWERED_MS = 10000;
const [FIRST_MS, LONGEST_MS] = [2000, 15000];
// Too slow, too much at once: these pass.
const FOR_A_MOMENT = [408, 429];

export const inOurFormat = (told) => Boolean(told?.code && told.title);

export const isOrder = (problem) => inOurFormat(problem) && problem.status >= 400 && problem.status < 500 && !FOR_A_MOMENT.includes(problem.status);

export const said = ({ title, detail }) => [...new Set([title, detail])].filter(Boolean).join(" ");

// An event stream that was refused does not say why: the same is asked for once more. Gives the problem, or null for weather.
export async function orderOf(address) {
  const enough = new AbortController();
  const timer = setTimeout(() => enough.abort(), ANSWERED_MS);
  try {
    const answer = await fetch(address, { headers: { accept: "text/event-stream" }, signal: enough.signal });
    const problem = answer.ok ? null : await answer.json();
    return isOrder(problem) ? problem : null;
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
    enough.abort();
  }
}

// How long to wait until the next try: longer each time, until something has held for a while. Many that wait do not come at once.
export class Pauses {
  next = FIRST_MS;
  held = null;

  holds() {
    this.held ??= Date.now();
  }

  take() {
    if (this.held !== null && Date.now() - this.held > LONGEST_MS) this.next = FIRST_MS;
    this.held = null;
    const ms = this.next * (0.75 + Math.random() / 4);
    this.next = Math.min(LONGEST_MS, 2 * this.next);
    return ms;
  }
}
