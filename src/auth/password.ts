/**
 * Password hashes: scrypt in PHC form, computed in one thread of its own, behind all other work, with a short queue. In
 * libuv's thread pool (`crypto.scrypt`) a few of them at once delay the journal's fdatasync a thousandfold, and with it
 * every device. A password that was right a short while ago is known again without it, by a keyed digest in memory, so
 * that programs which sign in for each call cost no scrypt each.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { Worker } from 'node:worker_threads';
import { assert, ErrorCode, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { AgedMap } from '../device/aged-map.ts';

/** 2^15 · 8 · 3: 32 MiB and about 0.2 s, one of OWASP's equal choices, the one with the least memory. */
const cost = { ln: 15, r: 8, p: 3 };
const hashBytes = 32;
const phc = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

// As text, so that it is the same in a build, where files end in .js, and in a test, where they do not.
const thread = `
const { parentPort } = require('node:worker_threads');
const { scryptSync } = require('node:crypto');
// Of this thread only: acknowledgements go first.
require('node:os').setPriority(0, ${limits.passwordThreadNice});
parentPort.on('message', ({ password, salt, ln, r, p, bytes }) => {
  const N = 2 ** ln;
  parentPort.postMessage(scryptSync(password, salt, bytes, { N, r, p, maxmem: 256 * N * r }));
});`;

interface Cost {
  ln: number;
  r: number;
  p: number;
}

interface Job extends Cost {
  password: string;
  salt: Buffer;
  bytes: number;
}

interface Waiter {
  job: Job;
  /** Monotonic milliseconds. */
  since: number;
  resolve: (hash: Buffer) => void;
  reject: (error: Error) => void;
}

export class PasswordHasher {
  readonly #queueMax: number;
  /** The first one is being computed. */
  readonly #waiters: Waiter[] = [];
  readonly #digestKey = randomBytes(32);
  /** Stored hash → the password that was right, as a digest, and until when that counts. */
  readonly #remembered = new AgedMap<string, { digest: Buffer; until: number }>(limits.rememberedPasswordsMax);
  /** Questions that wait for their answer: as many as the queue is long. */
  readonly #asked = new Map<string, Promise<boolean>>();
  #worker: Worker | undefined;
  #closed = false;

  /** `queueMax`: checks that wait behind the one that runs; one more is refused. */
  constructor(queueMax: number) {
    this.#queueMax = queueMax;
  }

  get waiting(): number {
    return this.#waiters.length;
  }

  async hash(password: string): Promise<string> {
    const salt = randomBytes(16);
    const hash = await this.#scrypt(password, salt, cost, hashBytes);
    return `$scrypt$ln=${cost.ln},r=${cost.r},p=${cost.p}$${unpadded(salt)}$${unpadded(hash)}`;
  }

  /**
   * Without a `stored` hash (no such user) it takes the same time and says no. Programs that sign in together, all as the
   * same user, wait for one answer; also where there is none, or how they are answered would tell that there is none.
   */
  verify(user: string, password: string, stored: string | null): Promise<boolean> {
    const digest = createHmac('sha256', this.#digestKey).update(password).digest();
    const remembered = stored === null ? undefined : this.#remembered.get(stored);
    if (remembered && remembered.until > performance.now() && timingSafeEqual(digest, remembered.digest)) {
      return Promise.resolve(true);
    }
    const question = `${digest.toString('base64')} ${stored} ${user}`;
    const asked = this.#asked.get(question);
    if (asked) return asked;
    const answer = this.#compare(password, digest, stored).finally(() => this.#asked.delete(question));
    this.#asked.set(question, answer);
    return answer;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#worker?.terminate();
  }

  async #compare(password: string, digest: Buffer, stored: string | null): Promise<boolean> {
    if (stored === null) {
      await this.#scrypt(password, Buffer.alloc(16), cost, hashBytes);
      return false;
    }
    const [, ln, r, p, salt, hash] = phc.exec(stored) ?? [];
    assert(salt && hash, 'a stored password hash is in PHC form');
    const expected = Buffer.from(hash, 'base64');
    const storedCost = { ln: Number(ln), r: Number(r), p: Number(p) };
    const computed = await this.#scrypt(password, Buffer.from(salt, 'base64'), storedCost, expected.length);
    const isRight = timingSafeEqual(computed, expected);
    if (isRight) this.#remembered.set(stored, { digest, until: performance.now() + limits.rememberedPasswordMs });
    return isRight;
  }

  async #scrypt(password: string, salt: Buffer, cost: Cost, bytes: number): Promise<Buffer> {
    if (this.#waiters.length > this.#queueMax) throw tooMany();
    const job = { password, salt, bytes, ...cost };
    return new Promise((resolve, reject) => {
      if (this.#waiters.push({ job, since: performance.now(), resolve, reject }) === 1) this.#computeFirst();
    });
  }

  #computeFirst(): void {
    const worker = (this.#worker ??= this.#start());
    const [first] = this.#waiters;
    if (first) {
      worker.ref();
      worker.postMessage(first.job);
    } else {
      // An idle thread does not keep the process alive.
      worker.unref();
    }
  }

  #start(): Worker {
    const worker = new Worker(thread, { eval: true, resourceLimits: { maxOldGenerationSizeMb: 64 } });
    worker.on('message', (hash: Uint8Array) => {
      this.#waiters.shift()!.resolve(Buffer.from(hash));
      const late = performance.now() - limits.passwordWaitMsMax;
      while (this.#waiters.length > 0 && this.#waiters[0]!.since < late) this.#waiters.shift()!.reject(tooMany());
      this.#computeFirst();
    });
    const end = (reason: string) => {
      if (this.#worker === worker) this.#worker = undefined;
      const fault = new Fault(503, ErrorCode.general, 'password_thread', reason, 1);
      for (const waiter of this.#waiters.splice(0)) waiter.reject(fault);
    };
    worker.on('error', (error) => end(`Passwords cannot be checked at the moment: ${error.message}`));
    worker.on('exit', () => {
      if (this.#worker === worker || this.#closed) end('Passwords cannot be checked while the server stops.');
    });
    return worker;
  }
}

function tooMany(): Fault {
  return new Fault(429, ErrorCode.tooManyRequests, 'sign_in_queue', 'Too many sign-ins at once; try again.', 1);
}

function unpadded(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '');
}
