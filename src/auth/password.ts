/**
 * Password hashes: scrypt in PHC form, computed in one thread of its own with a short queue. In libuv's thread pool
 * (`crypto.scrypt`) a few of them at once delay the journal's fdatasync a thousandfold, and with it every device.
 */
import { randomBytes, timingSafeEqual } from 'node:crypto';
import { Worker } from 'node:worker_threads';
import { assert, ErrorCode, Fault } from '../base/errors.ts';

/** 2^15 · 8 · 3: 32 MiB and about 0.2 s, one of OWASP's equal choices, the one with the least memory. */
const cost = { ln: 15, r: 8, p: 3 };
const hashBytes = 32;
const phc = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

// As text, so that it is the same in a build, where files end in .js, and in a test, where they do not.
const thread = `
const { parentPort } = require('node:worker_threads');
const { scryptSync } = require('node:crypto');
parentPort.on('message', ({ id, password, salt, ln, r, p, bytes }) => {
  const N = 2 ** ln;
  parentPort.postMessage({ id, hash: scryptSync(password, salt, bytes, { N, r, p, maxmem: 256 * N * r }) });
});`;

interface Cost {
  ln: number;
  r: number;
  p: number;
}

interface Waiter {
  resolve: (hash: Buffer) => void;
  reject: (error: Error) => void;
}

export class PasswordHasher {
  readonly #queueMax: number;
  readonly #waiters = new Map<number, Waiter>();
  #worker: Worker | undefined;
  #lastId = 0;
  #closed = false;

  /** `queueMax`: checks that wait behind the one that runs; one more is refused. */
  constructor(queueMax: number) {
    this.#queueMax = queueMax;
  }

  get waiting(): number {
    return this.#waiters.size;
  }

  async hash(password: string): Promise<string> {
    const salt = randomBytes(16);
    const hash = await this.#scrypt(password, salt, cost, hashBytes);
    return `$scrypt$ln=${cost.ln},r=${cost.r},p=${cost.p}$${unpadded(salt)}$${unpadded(hash)}`;
  }

  /** Without a `stored` hash (no such user) it takes the same time and says no. */
  async verify(password: string, stored: string | null): Promise<boolean> {
    if (stored === null) {
      await this.#scrypt(password, Buffer.alloc(16), cost, hashBytes);
      return false;
    }
    const [, ln, r, p, salt, hash] = phc.exec(stored) ?? [];
    assert(salt && hash, 'a stored password hash is in PHC form');
    const expected = Buffer.from(hash, 'base64');
    const storedCost = { ln: Number(ln), r: Number(r), p: Number(p) };
    return timingSafeEqual(
      await this.#scrypt(password, Buffer.from(salt, 'base64'), storedCost, expected.length),
      expected,
    );
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#worker?.terminate();
  }

  #scrypt(password: string, salt: Buffer, { ln, r, p }: Cost, bytes: number): Promise<Buffer> {
    if (this.#waiters.size > this.#queueMax) {
      throw new Fault(429, ErrorCode.tooManyRequests, 'sign_in_queue', 'Too many sign-ins at once; try again.', 1);
    }
    const worker = (this.#worker ??= this.#start());
    this.#lastId += 1;
    const id = this.#lastId;
    return new Promise((resolve, reject) => {
      this.#waiters.set(id, { resolve, reject });
      worker.ref();
      worker.postMessage({ id, password, salt, ln, r, p, bytes });
    });
  }

  #start(): Worker {
    const worker = new Worker(thread, { eval: true, resourceLimits: { maxOldGenerationSizeMb: 64 } });
    worker.on('message', ({ id, hash }: { id: number; hash: Uint8Array }) => {
      this.#waiters.get(id)!.resolve(Buffer.from(hash));
      this.#waiters.delete(id);
      // An idle thread does not keep the process alive.
      if (this.#waiters.size === 0) worker.unref();
    });
    const end = (reason: string) => {
      if (this.#worker === worker) this.#worker = undefined;
      const fault = new Fault(503, ErrorCode.general, 'password_thread', reason, 1);
      for (const waiter of this.#waiters.values()) waiter.reject(fault);
      this.#waiters.clear();
    };
    worker.on('error', (error) => end(`Passwords cannot be checked at the moment: ${error.message}`));
    worker.on('exit', () => {
      if (this.#worker === worker || this.#closed) end('Passwords cannot be checked while the server stops.');
    });
    return worker;
  }
}

function unpadded(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '');
}
