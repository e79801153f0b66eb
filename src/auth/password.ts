/**
 * Computes password hashes: scrypt in PHC form, in one thread of low priority with a short queue, in which the networks
 * of the callers take turns. In libuv's thread pool (`crypto.scrypt`) a few hashes at once delay the journal's
 * fdatasync a thousandfold, and so every device. A keyed digest in memory recognises a password that was right a short
 * time ago, so a program that signs in for each call does not cost a scrypt each time.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { Worker } from 'node:worker_threads';
import { assert, Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';

/** 2^15 · 8 · 3: 32 MiB and about 0.2 s, the choice with the least memory among those that OWASP lists as equal. */
const defaultCost = costOf(15);
const hashBytes = 32;
const phc = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

// The source of the thread is a string, because a build has files that end in .js, and a test has none.
const thread = `
const { parentPort } = require('node:worker_threads');
const { scryptSync } = require('node:crypto');
const { getPriority, setPriority } = require('node:os');
// Lowers the priority of this thread only, as in base/priority.ts: acknowledgements go first.
if (getPriority(0) < ${limits.passwordThreadNice}) setPriority(0, ${limits.passwordThreadNice});
parentPort.on('message', ({ password, salt, ln, r, p, bytes }) => {
  const N = 2 ** ln;
  parentPort.postMessage(scryptSync(password, salt, bytes, { N, r, p, maxmem: 256 * N * r }));
});`;

/** Parameters of scrypt: 2^ln rounds of r · 128 bytes, p times. */
interface Cost {
  ln: number;
  r: number;
  p: number;
}

/** Returns the cost of `auth.passwordCost`. A stored hash keeps the cost with which it was made. */
export function costOf(ln: number): Cost {
  return { ln, r: 8, p: 3 };
}

interface Job extends Cost {
  password: string;
  salt: Buffer;
  bytes: number;
}

/** The caller that waits for a password check. */
export interface Asker {
  network: string;
  /** True when the user signed in from this network before: an unknown asker makes room for a known one. */
  isKnown: boolean;
}

/** The asker for checks that this process itself needs. */
const ownAsker: Asker = { network: '', isKnown: true };

interface Waiter {
  job: Job;
  asker: Asker;
  /** Monotonic milliseconds. */
  since: number;
  resolve: (hash: Buffer) => void;
  reject: (error: Error) => void;
}

export class PasswordHasher {
  readonly #queueMax: number;
  readonly #cost: Cost;
  #running: Waiter | undefined;
  /** Waiting checks by network, each in order of arrival; the network whose turn is next comes first. */
  readonly #queues = new Map<string, Waiter[]>();
  #queued = 0;
  readonly #digestKey = randomBytes(32);
  /** Stored hash → digest of the password that was right, and its expiry. */
  readonly #remembered = new FifoMap<string, { digest: Buffer; until: number }>(limits.rememberedPasswordsMax);
  /** Checks that wait for their result, at most the length of the queue. */
  readonly #asked = new Map<string, Promise<boolean>>();
  #worker: Worker | undefined;
  #closed = false;

  /** `queueMax`: checks that wait after the running one; a further check is refused. `cost`: of new hashes. */
  constructor(queueMax: number, cost = defaultCost) {
    this.#queueMax = queueMax;
    this.#cost = cost;
  }

  get waiting(): number {
    return this.#queued + (this.#running ? 1 : 0);
  }

  async hash(password: string, asker = ownAsker): Promise<string> {
    const salt = randomBytes(16);
    const cost = this.#cost;
    const hash = await this.#scrypt(password, salt, cost, hashBytes, asker);
    return `$scrypt$ln=${cost.ln},r=${cost.r},p=${cost.p}$${unpadded(salt)}$${unpadded(hash)}`;
  }

  /**
   * Returns true when the password matches `stored`. Without a `stored` hash (the user does not exist) the check takes
   * the same time and returns false. Programs that sign in at the same time as the same user share one check. Checks of
   * unknown users are shared too, so that the timing does not reveal that a user is unknown.
   */
  verify(user: string, password: string, stored: string | null, asker = ownAsker): Promise<boolean> {
    const digest = createHmac('sha256', this.#digestKey).update(password).digest();
    const remembered = stored === null ? undefined : this.#remembered.get(stored);
    if (remembered && remembered.until > performance.now() && timingSafeEqual(digest, remembered.digest)) {
      return Promise.resolve(true);
    }
    const question = `${digest.toString('base64')} ${stored} ${user}`;
    const asked = this.#asked.get(question);
    if (asked) return asked;
    const answer = this.#compare(password, digest, stored, asker).finally(() => this.#asked.delete(question));
    this.#asked.set(question, answer);
    return answer;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#worker?.terminate();
  }

  async #compare(password: string, digest: Buffer, stored: string | null, asker: Asker): Promise<boolean> {
    if (stored === null) {
      await this.#scrypt(password, Buffer.alloc(16), this.#cost, hashBytes, asker);
      return false;
    }
    const [, ln, r, p, salt, hash] = phc.exec(stored) ?? [];
    assert(salt && hash, 'a stored password hash is in PHC form');
    const expected = Buffer.from(hash, 'base64');
    const storedCost = { ln: Number(ln), r: Number(r), p: Number(p) };
    const salted = Buffer.from(salt, 'base64');
    const computed = await this.#scrypt(password, salted, storedCost, expected.length, asker);
    const isRight = timingSafeEqual(computed, expected);
    if (isRight) this.#remembered.set(stored, { digest, until: performance.now() + limits.rememberedPasswordMs });
    return isRight;
  }

  async #scrypt(password: string, salt: Buffer, cost: Cost, bytes: number, asker: Asker): Promise<Buffer> {
    if (this.#running && this.#queued >= this.#queueMax && !this.#makeRoom(asker)) throw tooMany();
    const job = { password, salt, bytes, ...cost };
    return new Promise((resolve, reject) => {
      const queue = this.#queues.get(asker.network) ?? [];
      queue.push({ job, asker, since: performance.now(), resolve, reject });
      this.#queues.set(asker.network, queue);
      this.#queued += 1;
      if (!this.#running) this.#computeNext();
    });
  }

  /**
   * Refuses one waiter to make room for `asker`. The refused one is the newest waiter of the network with the most
   * waiters, if that network has more than the asker's network would have. Otherwise, for a known asker whose network
   * has less than a quarter of the queue, it is the newest unknown waiter. Returns false when no waiter was refused.
   */
  #makeRoom({ network, isKnown }: Asker): boolean {
    const queues = [...this.#queues.values()];
    const longest = queues.reduce((a, b) => (b.length > a.length ? b : a), []);
    const own = this.#queues.get(network)?.length ?? 0;
    const strangers = queues.findLast((queue) => !queue.at(-1)!.asker.isKnown);
    const goesFirst = isKnown && own < this.#queueMax / 4;
    const from = longest.length > own + 1 ? longest : goesFirst ? strangers : undefined;
    if (!from) return false;
    this.#take(from, from.length - 1).reject(tooMany());
    return true;
  }

  #take(queue: Waiter[], index: number): Waiter {
    const [waiter] = queue.splice(index, 1);
    this.#queued -= 1;
    if (queue.length === 0) this.#queues.delete(waiter!.asker.network);
    return waiter!;
  }

  /** Takes the oldest waiter of the next network. Its other waiters then wait for all other networks. */
  #next(): Waiter | undefined {
    for (const [network, queue] of this.#queues) {
      const waiter = this.#take(queue, 0);
      if (this.#queues.delete(network)) this.#queues.set(network, queue);
      return waiter;
    }
    return undefined;
  }

  #computeNext(): void {
    const worker = (this.#worker ??= this.#start());
    const late = performance.now() - limits.passwordWaitMsMax;
    let next = this.#next();
    for (; next && next.since < late; next = this.#next()) next.reject(tooMany());
    this.#running = next;
    if (next) {
      worker.ref();
      worker.postMessage(next.job);
    } else {
      // An idle thread does not keep the process alive.
      worker.unref();
    }
  }

  #start(): Worker {
    const worker = new Worker(thread, { eval: true, resourceLimits: { maxOldGenerationSizeMb: 64 } });
    worker.on('message', (hash: Uint8Array) => {
      this.#running!.resolve(Buffer.from(hash));
      this.#computeNext();
    });
    const end = (reason: string) => {
      if (this.#worker === worker) this.#worker = undefined;
      const fault = new Fault('password_thread', reason, 1);
      this.#running?.reject(fault);
      this.#running = undefined;
      for (let waiter = this.#next(); waiter; waiter = this.#next()) waiter.reject(fault);
    };
    worker.on('error', (error) => end(`Passwords cannot be checked at the moment: ${error.message}`));
    worker.on('exit', () => {
      if (this.#worker === worker || this.#closed) end('Passwords cannot be checked while the server stops.');
    });
    return worker;
  }
}

function tooMany(): Fault {
  return new Fault('sign_in_queue', 'Too many sign-ins at once; try again.', 1);
}

function unpadded(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '');
}
