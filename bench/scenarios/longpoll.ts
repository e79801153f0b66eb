/**
 * Long polls for attribute updates, held on one machine: what one costs the workers in memory, and the time from the
 * write of a shared attribute over REST to the answer of the poll, wherever the two ends happen to be.
 */
import { Agent, request as httpRequest } from 'node:http';
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Api, eventually } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { growthOf, residentBytesOfAll } from '../cpu.ts';
import { createDevices } from '../engine-under-load.ts';
import { addedUp, refusedText, totalOf } from '../load/counts.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import { HeldPolls } from '../load/http/polls.ts';
import { WaitView } from '../load/wait-view.ts';
import { figure, say, sayProgress, table, workersText, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const bytesPerPollMax = 4 * 1024;
const path = 'attributes/updates?timeout=300000';
/**
 * V8 collects the garbage of earlier requests when a process has been idle for 8 s: memory is read until it has not
 * fallen for 20 s. These three waits are most of the time of this scenario.
 */
const readingEveryMs = 5_000;
const settledAfterReadings = 4;
const settleMsMax = 60_000;
const answerMsMax = 10_000;
const mebibyte = 1_048_576;
const warmupSamples = 50;
const warmupPolls = 200;

export async function runLongPoll(settings: BenchSettings): Promise<boolean> {
  const { polls, samples, pauseMs } = settings.longpoll;
  const workers = settings.http.workers || availableParallelism();
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  const held: HeldPolls[] = [];
  try {
    sayProgress(`creating ${figure(polls)} devices`);
    const tokens = await createDevices(engine.api, polls);
    // A heap that grew while devices were created would have room for polls already.
    await engine.restart();
    // Code and buffers that the first polls bring along are not counted.
    const first = await HeldPolls.open({
      host: '127.0.0.1',
      port: engine.port,
      tokens: tokens.slice(0, warmupPolls),
      path,
    });
    await heldBy(engine, Math.min(warmupPolls, polls));
    first.close();
    await heldBy(engine, 0);
    const before = await settledBytes(engine, 'before the first poll, 1 of 3');
    const holdMore = async (part: string[], inAll: number, wait: string) => {
      sayProgress(`holding ${figure(inAll)} polls`);
      held.push(await HeldPolls.open({ host: '127.0.0.1', port: engine.port, tokens: part, path }));
      await heldBy(engine, inAll);
      const atFirst = residentBytesOfAll(engine.workers());
      return { atFirst, resident: await settledBytes(engine, wait), heap: await heapBytes(engine) };
    };
    // The first half also includes costs that all polls share: heap growth, tables, code. The second half shows the
    // cost of one more poll.
    const half = polls >> 1;
    const afterHalf = await holdMore(tokens.slice(0, half), half, 'with half of the polls, 2 of 3');
    const afterAll = await holdMore(tokens.slice(half), polls, 'with all polls, 3 of 3');
    const bytesPerPoll = (afterAll.resident - afterHalf.resident) / (polls - half);
    const heapBytesPerPoll = (afterAll.heap - afterHalf.heap) / (polls - half);
    const bytesPerPollFromStart = (afterAll.resident - before) / polls;
    const bytesPerPollAtFirst = (afterAll.atFirst - before) / polls;
    const latency = summaryOf(await measure(engine, (n) => held[n < half ? 0 : 1]!, tokens, samples, pauseMs));
    table(
      [
        `${figure(polls)} polls held, ${workersText(workers)}`,
        'p50 ms',
        'p99 ms',
        'max ms',
        'bytes/poll',
        'of it JS heap',
        'from a fresh start',
        'before collection',
      ],
      [
        [
          'attribute write → answer',
          latency.p50Ms,
          latency.p99Ms,
          latency.maxMs,
          bytesPerPoll,
          heapBytesPerPoll,
          bytesPerPollFromStart,
          bytesPerPollAtFirst,
        ],
      ],
    );
    const stillHeld = await countHeld(engine);
    const unexpected = held.reduce((sum, part) => sum + part.unexpected, 0);
    say(`still held after ${samples} updates: ${figure(stillHeld)}; polls that ended by themselves: ${unexpected}`);
    const refused = addedUp(held.map((part) => part.refused));
    if (Object.keys(refused).length > 0) say(`refused with ${refusedText(refused)}`);
    say(`targets: ${figure(bytesPerPollMax)} bytes for a held poll; all are still held, none refused`);
    if (!(bytesPerPoll > 0)) say('INVALID: memory did not grow with the polls; hold more of them');
    const targets = new Targets();
    targets.atMost('a held poll:', growthOf(bytesPerPoll), bytesPerPollMax, ' bytes');
    targets.none('polls that are no longer held:', polls - stillHeld);
    targets.none('polls that ended by themselves:', unexpected);
    targets.none('polls that were refused:', totalOf(refused));
    const holds = targets.tell();
    writeResult('longpoll', settings, {
      workers,
      bytesPerPoll,
      heapBytesPerPoll,
      bytesPerPollFromStart,
      bytesPerPollAtFirst,
      latency,
      stillHeld,
      unexpected,
      refused,
      missed: targets.missed,
    });
    return holds;
  } finally {
    for (const part of held) part.close();
    await engine.destroy();
  }
}

/** `when` says which of the three waits this is. */
async function settledBytes(engine: Engine, when: string): Promise<number> {
  const begin = performance.now();
  const mostSeconds = () => (settleMsMax - (performance.now() - begin)) / 1000;
  sayProgress(
    `waiting until V8 has collected its garbage, ${when}: at least ${(settledAfterReadings * readingEveryMs) / 1000} s, ` +
      `at most ${settleMsMax / 1000} s`,
  );
  const view = new WaitView('waiting for V8');
  try {
    let least = residentBytesOfAll(engine.workers());
    let unchanged = 0;
    while (mostSeconds() > 0 && unchanged < settledAfterReadings) {
      const leastSeconds = Math.min(mostSeconds(), ((settledAfterReadings - unchanged) * readingEveryMs) / 1000);
      view.note(`workers ${figure(least / mebibyte)} MiB`, { leastSeconds, mostSeconds: mostSeconds() });
      await sleep(readingEveryMs);
      const now = residentBytesOfAll(engine.workers());
      unchanged = now > least * 0.99 ? unchanged + 1 : 0;
      least = Math.min(least, now);
    }
    return least;
  } finally {
    view.end();
  }
}

async function countHeld(engine: Engine): Promise<number> {
  const text = await engine.api.metrics();
  return Number(/^http_polls_held (\d+)$/m.exec(text)?.[1] ?? -1);
}

/** Bytes in use on the workers' JavaScript heaps, with garbage. */
async function heapBytes(engine: Engine): Promise<number> {
  const text = await engine.api.metrics();
  const values = [...text.matchAll(/^nodejs_heap_size_used_bytes\{process="worker-\d+"\} (\d+)$/gm)];
  return values.reduce((sum, [, bytes]) => sum + Number(bytes), 0);
}

async function heldBy(engine: Engine, polls: number): Promise<void> {
  await eventually(async () => (await countHeld(engine)) === polls, 60_000, 200);
}

/** Makes one write at a time, each for another device, and measures from its start. */
async function measure(
  engine: Engine,
  heldBy: (device: number) => HeldPolls,
  tokens: string[],
  samples: number,
  pauseMs: number,
): Promise<Histogram> {
  const histogram = new Histogram();
  const chosen = Array.from({ length: samples + warmupSamples }, () => Math.floor(Math.random() * tokens.length));
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const jwt = await engine.api.adminToken();
  sayProgress(`writing ${chosen.length} attributes, one after the other`);
  const view = new WaitView('timing attribute writes');
  const begin = performance.now();
  try {
    for (const [n, device] of chosen.entries()) {
      const left = n === 0 ? undefined : ((performance.now() - begin) / 1000 / n) * (chosen.length - n);
      view.note(`${n} of ${chosen.length}`, left === undefined ? left : { leastSeconds: left, mostSeconds: left });
      const id = await deviceId(engine.api, device);
      const answer = heldBy(device).next(tokens[device]!);
      const startedMs = Number(process.hrtime.bigint()) / 1e6;
      await write(
        `${engine.api.http}/api/plugins/telemetry/DEVICE/${id}/attributes/SHARED_SCOPE`,
        `{"level":${n}}`,
        jwt,
        agent,
      );
      const late = sleep(answerMsMax, undefined, { ref: false });
      const got = await Promise.race([answer, late]);
      if (got?.status !== 200 || got.body !== `{"level":${n}}`) {
        throw new Error(`a poll was answered ${got ? `${got.status} ${got.body}` : 'nothing'} and not level ${n}`);
      }
      if (n >= warmupSamples) histogram.record((got.atMs - startedMs) * 1000);
      await sleep(pauseMs);
    }
    return histogram;
  } finally {
    view.end();
    agent.destroy();
  }
}

async function deviceId(api: Api, n: number): Promise<string> {
  const response = await api.send('GET', `/api/tenant/devices?deviceName=bench-${n}`);
  return ((await response.json()) as { id: { id: string } }).id.id;
}

/** Uses node:http on one kept connection: fetch would add a millisecond. */
function write(url: string, body: string, jwt: string, agent: Agent): Promise<void> {
  return new Promise((resolve, reject) => {
    const headers = {
      'x-authorization': `Bearer ${jwt}`,
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
    };
    const request = httpRequest(url, { method: 'POST', agent, headers, timeout: answerMsMax }, (response) => {
      response.resume();
      response.on('end', () => {
        if (response.statusCode === 200) resolve();
        else reject(new Error(`the write was answered ${response.statusCode}`));
      });
    });
    const late = `the write of an attribute was not answered within ${answerMsMax / 1000} s`;
    request.on('timeout', () => request.destroy(new Error(late)));
    request.on('error', reject);
    request.end(body);
  });
}
