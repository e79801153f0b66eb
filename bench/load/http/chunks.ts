/**
 * Devices that take a file over HTTP in chunks, each on a connection of its own, one request in flight each; and the
 * memory that the workers need meanwhile.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { residentBytesOf } from '../../cpu.ts';

interface ChunkLoad {
  host: string;
  port: number;
  /** Path and query of a device's file, without `size` and `chunk`. */
  paths: string[];
  fileBytes: number;
  chunkBytes: number;
  /** Every how many-th chunk is taken; 1 = all of them. */
  step: number;
}

interface ChunkResult {
  requests: number;
  bytes: number;
  seconds: number;
  /** Connects that failed and were tried again, by their reason. */
  refused: Record<string, number>;
}

const connectTriesMax = 20;
const retryMs = 500;
const silenceMsMax = 30_000;

/** Ends when every device has every chunk; an answer of another length or status is an error. */
export async function takeChunks(load: ChunkLoad): Promise<ChunkResult> {
  const startedAt = performance.now();
  const chunks = Math.ceil(load.fileBytes / load.chunkBytes);
  const takers = load.paths.map((path, n) => new Taker(load, path, chunks, n % load.step));
  await Promise.all(takers.map((taker) => taker.done));
  const requests = takers.reduce((sum, taker) => sum + taker.requests, 0);
  const bytes = takers.reduce((sum, taker) => sum + taker.bytes, 0);
  const refused: Record<string, number> = {};
  for (const reason of takers.flatMap((taker) => taker.refused)) refused[reason] = (refused[reason] ?? 0) + 1;
  return { requests, bytes, seconds: (performance.now() - startedAt) / 1000, refused };
}

const headEnd = Buffer.from('\r\n\r\n');

class Taker {
  requests = 0;
  bytes = 0;
  readonly refused: string[] = [];
  readonly done: Promise<void>;
  readonly #load: ChunkLoad;
  readonly #path: string;
  readonly #chunks: number;
  #socket: Socket | undefined;
  #isConnected = false;
  #chunk: number;
  /** Bytes of the body that are still to come; -1 = the head is. */
  #missing = -1;
  #head = Buffer.alloc(0);

  constructor(load: ChunkLoad, path: string, chunks: number, firstChunk: number) {
    this.#load = load;
    this.#path = path;
    this.#chunks = chunks;
    this.#chunk = firstChunk;
    this.done = this.#connect();
  }

  /** A refused attempt is counted and repeated. */
  async #connect(): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#takeAll();
      } catch (error) {
        if (this.#isConnected || tries === connectTriesMax) throw error;
        const { code, message } = error as NodeJS.ErrnoException;
        this.refused.push(`${code ?? message} at the connect`);
        await sleep(retryMs);
      }
    }
  }

  #takeAll(): Promise<void> {
    const socket = connect({ host: this.#load.host, port: this.#load.port, noDelay: true });
    this.#socket = socket;
    socket.setTimeout(silenceMsMax, () => socket.destroy(new Error(`nothing received for ${silenceMsMax / 1000} s`)));
    return new Promise((resolve, reject) => {
      socket.on('error', reject);
      socket.on('close', () => (this.#chunk >= this.#chunks ? resolve() : reject(new Error('closed too early'))));
      socket.on('data', (data: Buffer) => {
        try {
          this.#receive(data);
        } catch (error) {
          reject(error as Error);
        }
      });
      socket.on('connect', () => {
        this.#isConnected = true;
        this.#ask();
      });
    });
  }

  #ask(): void {
    if (this.#chunk >= this.#chunks) {
      this.#socket!.destroy();
      return;
    }
    const query = `&size=${this.#load.chunkBytes}&chunk=${this.#chunk}`;
    this.#socket!.write(`GET ${this.#path}${query} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
  }

  #receive(data: Buffer): void {
    let body = data;
    if (this.#missing < 0) {
      this.#head = Buffer.concat([this.#head, data]);
      const end = this.#head.indexOf(headEnd);
      if (end < 0) return;
      const head = this.#head.toString('latin1', 0, end);
      body = this.#head.subarray(end + headEnd.length);
      this.#head = Buffer.alloc(0);
      const { chunkBytes, fileBytes } = this.#load;
      this.#missing = Math.min(chunkBytes, fileBytes - this.#chunk * chunkBytes);
      if (!head.startsWith('HTTP/1.1 200 ') || !head.toLowerCase().includes(`content-length: ${this.#missing}`)) {
        throw new Error(`chunk ${this.#chunk} was answered: ${head}`);
      }
    }
    this.#missing -= body.length;
    this.bytes += body.length;
    if (this.#missing > 0) return;
    this.#missing = -1;
    this.requests += 1;
    this.#chunk += this.#load.step;
    this.#ask();
  }
}

/** Resident bytes of each process at the start, and at most until `stop`. */
export function watchMemory(pids: number[]): { stop(): Promise<{ before: number; peak: number }[]> } {
  const before = pids.map(residentBytesOf);
  const peak = before.slice();
  let stopped = false;
  const watching = (async () => {
    while (!stopped) {
      for (const [n, pid] of pids.entries()) peak[n] = Math.max(peak[n]!, residentBytesOf(pid));
      await sleep(50);
    }
  })();
  return {
    async stop() {
      stopped = true;
      await watching;
      return before.map((bytes, n) => ({ before: bytes, peak: peak[n]! }));
    },
  };
}
