// SHA-256 of what comes piece by piece: the browser's own digest takes only what is whole in memory, and is missing without TLS.
const primes = [];
for (let n = 2; primes.length < 64; n += 1) if (primes.every((prime) => n % prime)) primes.push(n);
const fraction = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32) | 0;
const ROUNDS = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
const START = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
const BLOCK = 64;

export function hex(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Sha256 {
  #state = START.slice();
  #words = new Int32Array(64);
  #rest = new Uint8Array(BLOCK);
  #held = 0;
  #length = 0;

  // Takes a Uint8Array.
  update(bytes) {
    this.#length += bytes.length;
    let at = 0;
    if (this.#held) {
      at = Math.min(BLOCK - this.#held, bytes.length);
      this.#rest.set(bytes.subarray(0, at), this.#held);
      this.#held += at;
      if (this.#held < BLOCK) return this;
      this.#mix(new DataView(this.#rest.buffer), 0);
      this.#held = 0;
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (; at + BLOCK <= bytes.length; at += BLOCK) this.#mix(view, at);
    this.#rest.set(bytes.subarray(at));
    this.#held = bytes.length - at;
    return this;
  }

  digest() {
    const bits = BigInt(this.#length) * 8n;
    const end = new Uint8Array((this.#held < 56 ? 64 : 128) - this.#held);
    end[0] = 0x80;
    new DataView(end.buffer).setBigUint64(end.length - 8, bits);
    this.update(end);
    const made = new DataView(new ArrayBuffer(32));
    this.#state.forEach((word, at) => made.setInt32(at * 4, word));
    return new Uint8Array(made.buffer);
  }

  #mix(view, at) {
    const words = this.#words;
    for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + i * 4);
    for (let i = 16; i < 64; i += 1) {
      const x = words[i - 15];
      const y = words[i - 2];
      const early = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const late = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      words[i] = (words[i - 16] + early + words[i - 7] + late) | 0;
    }
    let [a, b, c, d, e, f, g, h] = this.#state;
    for (let i = 0; i < 64; i += 1) {
      const high = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const one = (h + high + ((e & f) ^ (~e & g)) + ROUNDS[i] + words[i]) | 0;
      const low = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const two = (low + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    const state = this.#state;
    state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e; state[5] += f; state[6] += g; state[7] += h;
  }
}
