// An Express middleware on node-redis.
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { createClient } from 'redis';

const { PORT = 8000, REDIS_URL = 'redis://127.0.0.1:6379', REDIS_TIMEOUT_MS = 100 } = process.env;
const failOpen = (process.env.FAIL ?? 'open') === 'open';
const legacyHeaders = process.env.LEGACY_HEADERS === '1';

// Windows in ms: per API key, and per address that uses it.
const policies = [
  { name: 'key', algorithm: 'GCRA', limit: 100, window: 60_000 },
  { name: 'ip', algorithm: 'SLIDINGLOG', limit: 10, window: 1_000 },
];
const tokens = [10_000, 3_600_000];
const hot = [1_000, 3_600_000];
const LEASE = 50;

const client = createClient({
  url: REDIS_URL,
  RESP: 3,
  disableOfflineQueue: true, // a call without a connection fails at once
  socket: { connectTimeout: Number(REDIS_TIMEOUT_MS), reconnectStrategy: (tries) => Math.min(50 * tries, 500) },
});
client.on('error', () => {}); // it reconnects by itself; each call tells its own failure
client.connect().catch(() => {}); // not awaited: the service starts without Redis, too

/** One command. The client's own time-out covers a call until it is sent; this one, until it is answered. */
async function redis(...args) {
  const timer = new AbortController();
  try {
    return await Promise.race([
      client.sendCommand(args.map(String)),
      sleep(Number(REDIS_TIMEOUT_MS), null, { signal: timer.signal }).then(() => {
        throw new Error('Redis is too slow');
      }),
    ]);
  } finally {
    timer.abort();
  }
}

const seconds = (ms) => Math.ceil(ms / 1000);
const callerOf = (req) => req.get('x-api-key') ?? req.ip;

// A caller's keys share a hash tag, so a cluster keeps them on one node. Hashed: no secret and no brace gets in.
const tag = (caller) => `limit:{${createHash('sha256').update(caller).digest('hex').slice(0, 16)}}`;

function deny(res, retryAfter) {
  if (retryAfter > 0) res.set('Retry-After', String(seconds(retryAfter))); // none for -1: never
  res.status(429).json({ error: 'too much' });
}

async function rateLimit(req, res, next) {
  const caller = tag(callerOf(req));
  const keys = [`${caller}:key`, `${caller}:ip:${req.ip}`];
  const clauses = policies.flatMap(({ algorithm, limit, window }) => [algorithm, limit, window]);
  let replies;
  try {
    // Sent together, one round trip: charge both limiters or none, then ask each when it has more.
    replies = await Promise.all([
      redis('RL.MULTI', keys.length, ...keys, '*', ...clauses),
      ...keys.map((key) => redis('RL.INSPECT', key, '*')),
    ]);
  } catch {
    // Away, too slow, or out of memory.
    return failOpen ? next() : res.status(503).json({ error: 'try again later' });
  }
  const [[allowed, retryAfter, limiters], ...states] = replies;
  res.set('RateLimit-Policy', policies.map(({ name, limit, window }) => `"${name}";q=${limit};w=${window / 1000}`).join(', '));
  // Where nothing is charged there is no key: all is left.
  const state = ({ name }, i) => `"${name}";r=${limiters[i][2]};t=${seconds(states[i]?.next_after ?? 0)}`;
  res.set('RateLimit', policies.map(state).join(', '));
  if (legacyHeaders) {
    const [, limit, remaining, , resetAfter] = limiters.reduce((a, b) => (b[2] < a[2] ? b : a));
    res.set({ 'X-RateLimit-Limit': `${limit}`, 'X-RateLimit-Remaining': `${remaining}`, 'X-RateLimit-Reset': `${seconds(resetAfter)}` });
  }
  return allowed ? next() : deny(res, retryAfter);
}

/**
 * Takes units of a hot key in bulk and spends them here: one call to Redis for LEASE requests. Never more than the
 * policy admits is charged. What is leased may be spent later, or be lost when this ends.
 */
class Lease {
  left = 0;
  retryAt = 0;
  pending = null;

  constructor(key) {
    this.key = key;
  }

  async refill() {
    const [granted, , , retryAfter] = await redis('RL.SLIDINGLOG', this.key, ...hot, '*', 'COST', LEASE, 'PARTIAL');
    this.left = granted;
    this.retryAt = performance.now() + retryAfter;
  }

  /** 0, or the ms to wait. */
  async take() {
    while (this.left === 0) {
      const wait = this.retryAt - performance.now();
      if (wait > 0) return wait;
      // Whoever comes meanwhile waits for the same call.
      this.pending ??= this.refill().finally(() => (this.pending = null));
      await this.pending;
    }
    this.left -= 1;
    return 0;
  }
}

const app = express();
const hotLease = new Lease('limit:hot');
app.use('/api', rateLimit);
app.get('/api', (_req, res) => res.json({ ok: true }));

// Reserves what the answer may take, then settles what it took. `used` stands for what the model tells.
app.post('/chat', async (req, res) => {
  const key = `${tag(callerOf(req))}:tokens`;
  const [estimate, used] = [Number(req.query.estimate), Number(req.query.used)];
  let [allowed, , remaining, retryAfter] = await redis('RL.TOKEN', key, ...tokens, '*', 'COST', estimate);
  if (!allowed) return deny(res, retryAfter);
  if (used > estimate) {
    // What was taken is taken: it may become a debt.
    [, , remaining] = await redis('RL.TOKEN', key, ...tokens, '*', 'COST', used - estimate, 'FORCE');
  } else if (used < estimate) {
    remaining = await redis('RL.REFUND', key, estimate - used, '*');
  }
  return res.json({ remaining });
});

app.get('/hot', async (_req, res) => {
  const wait = await hotLease.take();
  return wait ? deny(res, wait) : res.json({ ok: true });
});

// Tokens cost money: where the middleware is not asked, no Redis means no.
app.use((_error, _req, res, _next) => res.status(503).json({ error: 'try again later' }));
app.listen(Number(PORT), '127.0.0.1');
