// Node's oidc-provider with its own pages. Each line on stdin changes what it knows, and is answered by a line.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import Provider from 'oidc-provider';

const cookieKeys = [randomBytes(16).toString('hex')];
const known = { clients: [], people: {}, keys: [newKey()] };
const server = createServer((request, response) => answer(request, response));
let answer;
console.info = console.error; // stdout is for answers alone

function newKey() {
  const key = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ format: 'jwk' });
  return { ...key, kid: randomBytes(4).toString('hex'), use: 'sig', alg: 'ES256' };
}

// Where the provider keeps sessions, grants and codes: they outlive new keys and new clients.
const kept = new Map();

class Keeper {
  constructor(model) {
    this.model = model;
  }

  at(id) {
    return `${this.model}:${id}`;
  }

  async upsert(id, payload) {
    kept.set(this.at(id), { ...payload, id });
  }

  async find(id) {
    return kept.get(this.at(id));
  }

  async findByUid(uid) {
    for (const [key, payload] of kept) if (key.startsWith(`${this.model}:`) && payload.uid === uid) return payload;
  }

  async consume(id) {
    kept.get(this.at(id)).consumed = Math.floor(Date.now() / 1000);
  }

  async destroy(id) {
    kept.delete(this.at(id));
  }

  async revokeByGrantId(grantId) {
    for (const [key, payload] of kept) if (payload.grantId === grantId) kept.delete(key);
  }
}

function describe(issuer) {
  const provider = new Provider(issuer, {
    adapter: Keeper,
    clients: known.clients,
    jwks: { keys: known.keys },
    cookies: { keys: cookieKeys },
    claims: { openid: ['sub'], profile: ['preferred_username'], groups: ['groups'] },
    scopes: ['openid', 'profile', 'email', 'groups'],
    features: { backchannelLogout: { enabled: true } },
    // Without its guard against addresses of this machine, where all is here, and its haste on a busy one.
    fetch: (url, { dispatcher, signal, ...options }) => fetch(url, options),
    findAccount: (_context, subject) =>
      known.people[subject] && { accountId: subject, claims: () => ({ sub: subject, ...known.people[subject] }) },
  });
  provider.on('backchannel.error', (_context, error) => console.error(error));
  answer = provider.callback();
}

server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  describe(issuer);
  console.log(JSON.stringify({ issuer }));
  createInterface({ input: process.stdin })
    .on('line', (line) => {
      const { rotate, ...changed } = JSON.parse(line);
      Object.assign(known, changed, rotate ? { keys: [newKey()] } : {});
      describe(issuer);
      console.log(JSON.stringify({ keys: known.keys.map((key) => key.kid) }));
    })
    .on('close', () => process.exit());
});
