/**
 * The HTTP reader over the real socket: requests from a seed, most of them broken. Each connection gets well-formed
 * answers or is closed in time. What the engine stores of telemetry is what a strict reader (`fuzz/http-reference.ts`)
 * finds in the same bytes, so that no request is hidden inside another. The neighbours of `fuzz/watch.ts` notice
 * nothing.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../test/harness/engine.ts';
import type { Random } from '../test/harness/random.ts';
import { bodiesIn } from './http-reference.ts';
import { anyRequests, brokenRequests, requestOf } from './http-streams.ts';
import { type FuzzOptions, findingsMax, type Report, runCases, Tally } from './run.ts';
import { Watch } from './watch.ts';

const attackers = 8;
const devices = 4;
/** One stream in this many leaves its end to the engine. */
const patientEvery = 200;
const key = 'fuzz_mark';

export async function fuzzHttp(engine: Engine, options: FuzzOptions): Promise<Report> {
  const tokens = await Promise.all(
    Array.from({ length: devices }, async (_, n) => (await engine.api.createDevice(`http-fuzz-${n}`)).token),
  );
  /** Marks that the strict reader does not find in the bytes that hold them. */
  const hidden = new Map<string, Buffer>();
  const watch = await Watch.start(engine, options.servedMsMax);
  const { findings } = watch;
  const answers = new Tally();
  const firstTs = Date.now() - 24 * 3_600_000;

  const one = async (random: Random, n: number) => {
    if (n === Math.floor(options.cases / 3)) watch.warm();
    const token = random.pick(tokens);
    const isTelemetry = random.next() < 0.5;
    const requests = isTelemetry ? telemetry(random, token, n, firstTs) : anyRequests(random, token);
    const bytes = brokenRequests(random, requests);
    if (isTelemetry) {
      for (const mark of marksIn(bytes.toString('latin1'))) hidden.set(mark, bytes);
      for (const mark of bodiesIn(bytes).flatMap(marksIn)) hidden.delete(mark);
    }
    const isPatient = options.isPatient && n % patientEvery === 0;
    const { received, isClosed } = await exchange(engine.port, random, bytes, options.closedMsMax, isPatient);
    const { statuses, fault } = readAnswers(received);
    const open = isClosed ? '' : `open after ${options.closedMsMax} ms, answers: ${statuses.join() || 'none'}`;
    if (open || fault) findings.push(`stream ${n}: ${open || fault}\n${reproduction(engine, bytes)}`);
    for (const status of statuses.length > 0 ? statuses : ['closed without an answer']) answers.add(status);
  };

  const startedAt = performance.now();
  await runCases(options, attackers, one, () => findings.length >= findingsMax);
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(1);
  await watch.stop();
  const stored = await storedMarks(engine);
  for (const mark of stored) {
    const bytes = hidden.get(mark);
    if (bytes) findings.push(`${mark} is stored, and no sound request carries it\n${reproduction(engine, bytes)}`);
  }
  const neighbours = `neighbours: ${watch.acknowledged} messages, the slowest ${watch.servedMs.toFixed(0)} ms`;
  // The streams contain valid requests: without any stored message the run has tested nothing.
  if (stored.length === 0) findings.push('no message of all streams was stored');
  const summary = `${options.cases} streams in ${seconds} s: ${answers}; ${stored.length} messages stored; ${neighbours}`;
  return { summary, findings };
}

/** Makes posts that each carry a unique mark. A mark that a mutation changed no longer counts. */
function telemetry(random: Random, token: string, stream: number, firstTs: number): Buffer[] {
  return Array.from({ length: 1 + random.below(3) }, (_, n) => {
    const body = `{"ts":${firstTs + stream * 3 + n},"values":{"${key}":"${markOf(stream, n)}"}}`;
    return requestOf(random, 'POST', `/api/v1/${token}/telemetry`, ['Content-Type: application/json'], body);
  });
}

function markOf(stream: number, n: number): string {
  const name = `${stream}-${n}`;
  return `mark-${name}-${createHash('sha256').update(name).digest('hex').slice(0, 8)}`;
}

function marksIn(text: string): string[] {
  return [...text.matchAll(/mark-(\d+)-(\d)-[0-9a-f]{8}/g)]
    .filter(([mark, stream, n]) => mark === markOf(Number(stream), Number(n)))
    .map(([mark]) => mark);
}

async function storedMarks(engine: Engine): Promise<string[]> {
  const rows = await engine.clickhouse(`SELECT DISTINCT text FROM telemetry WHERE key = '${key}'`);
  return rows.flatMap(([text]) => marksIn(text!));
}

interface Exchange {
  received: string;
  isClosed: boolean;
}

/** `isPatient`: the client never ends the connection. */
async function exchange(
  port: number,
  random: Random,
  bytes: Buffer,
  closedMsMax: number,
  isPatient: boolean,
): Promise<Exchange> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  const received: Buffer[] = [];
  const answered = new Promise<void>((resolve) => {
    socket.on('data', (chunk: Buffer) => {
      received.push(chunk);
      resolve();
    });
  });
  // A reset is an end, too.
  socket.on('error', () => {});
  const closed = once(socket, 'close').catch(() => {});
  const pieceBytes = random.next() < 0.5 ? bytes.length : 1 + random.below(bytes.length);
  const linger = 20 + random.below(60);
  for (let at = 0; at < bytes.length && !socket.destroyed; at += pieceBytes) {
    socket.write(bytes.subarray(at, at + pieceBytes));
    await sleep(0);
  }
  if (!isPatient) {
    await Promise.race([closed, answered, sleep(linger)]);
    socket.end();
  }
  const isClosed = await Promise.race([closed.then(() => true), sleep(closedMsMax, false, { ref: false })]);
  socket.destroy();
  return { received: Buffer.concat(received).toString('latin1'), isClosed };
}

/** The answers on a connection. The last one may be cut, because the client has left. */
function readAnswers(received: string): { statuses: string[]; fault: string } {
  const statuses: string[] = [];
  for (let at = 0; at < received.length; ) {
    const headEnd = received.indexOf('\r\n\r\n', at);
    if (headEnd < 0) break;
    const [first = '', ...lines] = received.slice(at, headEnd).split('\r\n');
    const [, status] = /^HTTP\/1\.1 (\d{3}) [ -~]+$/.exec(first) ?? [];
    if (status === undefined)
      return { statuses, fault: `an answer begins with ${JSON.stringify(first.slice(0, 100))}` };
    statuses.push(status);
    // A WebSocket stream follows.
    if (status === '101') break;
    const broken = lines.find((line) => !/^[\w-]+: [ -~]*$/.test(line));
    if (broken !== undefined) return { statuses, fault: `an answer has the header ${JSON.stringify(broken)}` };
    const start = headEnd + 4;
    const length = bodyLength(lines, received.slice(start));
    const body = received.slice(start, start + length);
    if (Number(status) >= 400 && body.length === length && !isErrorShape(body, status)) {
      return { statuses, fault: `${status} with the body ${JSON.stringify(body.slice(0, 200))}` };
    }
    at = start + length;
  }
  return { statuses, fault: '' };
}

function bodyLength(lines: string[], rest: string): number {
  // The answer to a HEAD has a length and no body.
  if (rest.startsWith('HTTP/1.1 ')) return 0;
  const [, length] = /^content-length: (\d+)$/im.exec(lines.join('\n')) ?? [];
  if (length !== undefined) return Number(length);
  return /^transfer-encoding: chunked$/im.test(lines.join('\n')) ? rest.indexOf('\r\n0\r\n\r\n') + 7 : 0;
}

/** `{"status":…,"message":…,"errorCode":…,"timestamp":…}`, or no body. */
function isErrorShape(body: string, status: string): boolean {
  if (body === '') return true;
  try {
    const error = JSON.parse(body) as Record<string, unknown>;
    return (
      Object.keys(error).sort().join() === 'errorCode,message,status,timestamp' && error['status'] === Number(status)
    );
  } catch {
    return false;
  }
}

function reproduction({ port }: Engine, bytes: Buffer): string {
  return `  printf ${bytes.toString('hex')} | xxd -r -p | nc -q 1 127.0.0.1 ${port}`;
}
