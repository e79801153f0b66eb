/**
 * `npm run stream`: prints the telemetry of the streams as NDJSON, a line for each data point. `show [SUBJECT]` prints
 * what the streams hold, `follow [SUBJECT]` what comes from now on, `decode FILE` what is in a file of frames (`-` =
 * standard input). Devices have their names when PostgreSQL answers. `forget STREAM` takes a stream that is gone out of
 * those that hosts have used; nothing else is changed (docs/stream.md).
 */
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { parseWords, printLine, runCommand } from './base/command.ts';
import { messageOf, StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { type Config, loadConfig } from './base/settings/config.ts';
import type { SenderRow } from './device/sql/look-up-store.ts';
import { openPostgresOf } from './instance/stores/engines.ts';
import { forgetStream, readKnownStreams } from './stream/position-store.ts';
import { readFrames } from './stream/read-frames.ts';
import { Senders } from './stream/senders.ts';
import { framesIn, pointsOf, type StreamPoint } from './stream/stream-points.ts';

const usage =
  'usage: npm run stream -- show [SUBJECT] [--from STREAM] (what waits) | follow [SUBJECT] [--from STREAM] ' +
  '(what comes) | decode FILE (a file of frames, - = standard input) | forget STREAM (a stream that is gone for good)';
const stopping = new AbortController();

async function run(words: string[]): Promise<void> {
  const {
    options: { from },
    others: [verb, word, ...more],
  } = parseWords(words, ['from'], usage);
  if (more.length > 0) throw new StartError(usage);
  const config = loadConfig();
  switch (verb) {
    case 'show':
    case 'follow':
      if (config.stream.url === '') throw new StartError('STREAM_URL is empty: name the servers of the stream.');
      return await print(config, streamed(config, verb === 'follow', word, from));
    case 'forget':
      if (word === undefined || from !== undefined) throw new StartError(usage);
      return await forget(config, word);
    case 'decode':
      if (word === undefined || from !== undefined) throw new StartError(usage);
      return await print(config, framesIn(word === '-' ? process.stdin : bytesOf(word)));
    default:
      throw new StartError(usage);
  }
}

/** Takes a stream out of those that hosts have used: its frames are given up. */
async function forget(config: Config, name: string): Promise<void> {
  const postgres = openPostgresOf(config, createLog('error', 'stream'));
  try {
    if (!(await forgetStream(postgres, name))) {
      const known = (await readKnownStreams(postgres)).map((stream) => stream.name);
      const names = known.length === 0 ? 'none is known' : `known are ${known.join(', ')}`;
      throw new StartError(`No host of this installation has used the stream ${name}: ${names}.`);
    }
    printLine(`The stream ${name} is forgotten; what ClickHouse did not have of it is not shipped.`);
  } finally {
    await postgres.close();
  }
}

async function* bytesOf(path: string): AsyncGenerator<Buffer> {
  try {
    yield* createReadStream(path);
  } catch (error) {
    throw new StartError(`The file of frames cannot be read: ${messageOf(error)}.`);
  }
}

function streamed({ stream: settings }: Config, follows: boolean, subject?: string, stream?: string) {
  return readFrames(settings, { stream, subject, follows, signal: stopping.signal });
}

/** Exit code 1 when some of it is no frame. */
async function print(config: Config, frames: ReturnType<typeof framesIn>): Promise<void> {
  const names = new Names(config);
  try {
    for await (const frame of frames) {
      const points = frame instanceof Uint8Array ? pointsOf(frame) : undefined;
      if (points) {
        await write(await names.linesOf(points));
      } else {
        const where = frame instanceof Uint8Array ? '' : ` at byte ${frame.from}`;
        const bytes = frame instanceof Uint8Array ? frame.length : frame.bytes;
        process.stderr.write(`millrace: ${bytes} bytes${where} are no intact frame\n`);
        process.exitCode = 1;
      }
    }
  } finally {
    await names.close();
  }
}

class Names {
  readonly #config: Config;
  #postgres: ReturnType<typeof openPostgresOf> | undefined;
  #senders: Senders | undefined;
  #isUnknown = false;

  constructor(config: Config) {
    this.#config = config;
  }

  async linesOf(points: StreamPoint[]): Promise<string> {
    const senders = await this.#find(new Set(points.map(({ device }) => device)));
    return points.map((point) => `${lineOf(point, senders.get(point.device))}\n`).join('');
  }

  async close(): Promise<void> {
    await this.#postgres?.close();
  }

  /** Asks once: without PostgreSQL, numbers say which device it is. */
  async #find(numbers: Set<number>): Promise<ReadonlyMap<number, SenderRow>> {
    if (this.#isUnknown) return new Map();
    try {
      this.#postgres ??= openPostgresOf(this.#config, createLog('error', 'stream'));
      this.#senders ??= new Senders(this.#postgres);
      return await this.#senders.find(numbers);
    } catch (error) {
      this.#isUnknown = true;
      process.stderr.write(`millrace: devices are shown without tenant and name: ${messageOf(error)}\n`);
      return new Map();
    }
  }
}

function lineOf({ device, key, ts, json, seq, order, arrivedMs }: StreamPoint, sender: SenderRow | undefined): string {
  const known = sender && { tenant: sender.tenantId, id: sender.id, name: sender.name };
  const head = JSON.stringify({ ...known, device, key, ts }).slice(0, -1);
  return `${head},"value":${json},"arrived":${arrivedMs},"order":"${order}"${seq === 0 ? '' : `,"seq":${seq}`}}`;
}

async function write(lines: string): Promise<void> {
  if (!process.stdout.write(lines)) await once(process.stdout, 'drain');
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stopping.abort());
// A reader of the lines that has left, as `head`, ends the command.
process.stdout.on('error', () => process.exit(0));

runCommand(run);
