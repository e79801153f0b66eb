/**
 * A load on a server that runs already (`--target`): creates devices, offers the load, reads back what was acknowledged
 * and removes the devices, also after an error or Ctrl-C.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Device } from '../../test/harness/api.ts';
import { causeOf, sentenceOf } from '../error-sentence.ts';
import { addedUp, totalOf } from '../load/counts.ts';
import { runHttpLoad } from '../load/http/http.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import { endGenerators, type LoadResult } from '../load/processes.ts';
import { type Cell, figure, say, table, writeResult, writeUnfinished } from '../report.ts';
import { UsageError } from '../settings.ts';
import { planOf, type TargetOrder } from './order.ts';
import { type NewDevice, Platform } from './platform.ts';
import { failuresOf, findRate, holds, type Measurement, missedText, spreadOf } from './search.ts';

const storedMsMax = 60_000;
/** The key that every record has. */
const countedKey = 'temperature';
const tokenDigits = 8;
const hourMs = 3_600_000;
const exitInterrupted = 130;
const removeTriesMax = 3;
const removeRetryMs = 1_000;
const reachMsMax = 10_000;

/**
 * Returns false when a bound was missed, a message refused, an acknowledged record not found, or a device not removed.
 * The first Ctrl-C removes the devices; the second one ends the command at once.
 */
export async function runTarget(order: TargetOrder): Promise<boolean> {
  for (const [name, text] of planOf(order)) say(`${name.padEnd(10)}${text}`);
  if (order.isDryRun) return true;
  const run = new TargetRun(order);
  const interrupt = () => {
    if (run.isInterrupted) {
      say(`The devices whose names begin with ${run.prefix} may be left.`);
      process.exit(exitInterrupted);
    }
    run.interrupt();
    endGenerators();
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, interrupt);
  let good = false;
  try {
    await reach(order.server);
    await run.prepare();
    good = await run.measure();
  } catch (error) {
    if (!run.isInterrupted) throw error;
    say('\ninterrupted');
    process.exitCode = exitInterrupted;
    writeUnfinished(resultName(order), publicPart(order));
  } finally {
    // After an error the error counts.
    good = (await run.close()) && good;
    for (const signal of signals) process.off(signal, interrupt);
  }
  return good;
}

/** Connects once, so that a wrong address ends the command before it waits out a load. */
async function reach({ host, port, authority }: TargetOrder['server']): Promise<void> {
  const socket = connect({ host, port, timeout: reachMsMax });
  socket.once('timeout', () => socket.destroy(new Error(`no connection within ${reachMsMax / 1000} s`)));
  try {
    await once(socket, 'connect');
  } catch (error) {
    throw new UsageError(`${authority} does not answer: ${causeOf(error as Error)}.`);
  } finally {
    socket.destroy();
  }
}

/** Runs whose devices were not removed yet. */
const open = new Set<TargetRun>();

/** Ends the runs that an interrupted scenario has left, and removes their devices. */
export async function closeTargets(): Promise<void> {
  for (const run of open) run.interrupt();
  await Promise.all([...open].map((run) => run.close()));
}

/** The devices of a run at a target, and the loads that it offers. */
export class TargetRun {
  readonly #order: TargetOrder;
  readonly #interrupted = new AbortController();
  readonly #run = `bench-${randomBytes(3).toString('hex')}`;
  #platform: Platform | undefined;
  #tokens: string[];
  #creating: Promise<Device[]> | undefined;
  #closing: Promise<boolean> | undefined;
  #accepted = 0;
  #unsure = 0;
  /** The points that this run writes have times from here to `#nextTs`, which is exclusive. */
  readonly #firstTs = Date.now() - 6 * hourMs;
  #nextTs = this.#firstTs;

  constructor(order: TargetOrder) {
    this.#order = order;
    this.#tokens = order.tokens;
  }

  /** The beginning of all names that this run creates. */
  get prefix(): string {
    return `${this.#run}-`;
  }

  get isInterrupted(): boolean {
    return this.#interrupted.signal.aborted;
  }

  /** What goes on ends at its next call to the server, with an error. */
  interrupt(): void {
    this.#interrupted.abort();
  }

  async prepare(): Promise<void> {
    const { rest, user, password, devices, kind } = this.#order;
    if (rest === '') return;
    this.#platform = await Platform.signIn(rest, user, password);
    this.#interrupted.signal.throwIfAborted();
    open.add(this);
    const rows = Array.from({ length: devices }, (_, n): NewDevice => {
      const number = String(n).padStart(tokenDigits, '0');
      const name = `${this.prefix}${number}`;
      return { name, accessToken: name.replaceAll('-', ''), isGateway: kind === 'gateway' };
    });
    const startedAt = performance.now();
    this.#creating = this.#platform.create(rows, this.#interrupted.signal);
    this.#tokens = (await this.#creating).map(({ token }) => token);
    say(`${'created'.padEnd(10)}${figure(devices)} in ${figure((performance.now() - startedAt) / 1000)} s\n`);
    // The first messages of a gateway create its devices.
    if (kind === 'gateway') await this.offer({ rate: devices, warmupSeconds: 0, rampSeconds: 0, seconds: 2 });
  }

  async measure(): Promise<boolean> {
    const { isSearch, repeat } = this.#order;
    const measurements = isSearch ? await findRate(this.#order, (rate) => this.#measureAt(rate)) : [];
    for (let n = 0; !isSearch && n < repeat; n += 1) measurements.push(await this.#measureAt(this.#order.rate));
    const verified = await this.verify();
    const good = this.#tell(measurements);
    say(verifiedText(verified));
    // A search also tries rates that the server cannot answer.
    if (!isSearch) for (const { load } of measurements) if (load.invalid !== '') say(`INVALID: ${load.invalid}`);
    writeResult(resultName(this.#order), publicPart(this.#order), { measurements, verified });
    return good && verified.isWhole !== false;
  }

  /** Removes the devices that this run has created. Returns false when the server does not let it. */
  close(): Promise<boolean> {
    this.#closing ??= this.#removeCreated().finally(() => open.delete(this));
    return this.#closing;
  }

  async #removeCreated(): Promise<boolean> {
    if (this.#creating === undefined || this.#platform === undefined || this.#order.keep) return true;
    // A device that is being created is not listed yet.
    await this.#creating.catch(() => {});
    for (let tries = 1; ; tries += 1) {
      try {
        const removed = await this.#platform.removeAll(this.prefix);
        say(`removed ${figure(removed)} devices`);
        return true;
      } catch (error) {
        if (tries < removeTriesMax) {
          await sleep(removeRetryMs);
          continue;
        }
        say(`NOT removed: the devices whose names begin with ${this.prefix} (${sentenceOf(error)})`);
        return false;
      }
    }
  }

  async #measureAt(rate: number): Promise<Measurement> {
    const { rampSeconds, warmupSeconds, seconds } = this.#order;
    const load = await this.offer({ rate, rampSeconds, warmupSeconds, seconds });
    const { p50Ms, p99Ms } = load.latency;
    say(`${figure(load.requestsPerSecond)} messages/s: p50 ${figure(p50Ms)} ms, p99 ${figure(p99Ms)} ms`);
    return { rate, load };
  }

  async offer(times: {
    rate: number;
    rampSeconds: number;
    warmupSeconds: number;
    seconds: number;
  }): Promise<LoadResult> {
    this.#interrupted.signal.throwIfAborted();
    const { kind, server, connections, children, processes, points, window, level, qos } = this.#order;
    const { authority: hostHeader, ...place } = server;
    const common = { ...place, processes, points, firstTs: this.#nextTs, stepMs: 1, ...times };
    const load =
      kind === 'http'
        ? await runHttpLoad({ ...common, hostHeader, tokens: this.#tokens, sockets: connections })
        : await runMqttLoad({ ...common, clients: this.#clients(children), window, level, qos, reconnects: true });
    this.#accepted += load.accepted;
    this.#unsure += load.unsure;
    // Times of the next load begin after all times of this one, because no device sends more messages than all devices
    // together. A refused message has taken a time, too.
    this.#nextTs += load.accepted + load.unsure + totalOf(load.refused) + connections * window + 1;
    return load;
  }

  #clients(children: number) {
    return this.#tokens.map((token, n) => {
      const names = Array.from({ length: children }, (_, child) => `${this.prefix}${n}-${child}`);
      return { token, children: names };
    });
  }

  /**
   * Waits until the server shows every acknowledged record. Records that were in flight when a connection broke may be
   * there too.
   */
  async verify(): Promise<Verified> {
    const unknown = { isWhole: undefined, expected: this.#accepted, found: 0, failure: '' };
    if (this.#platform === undefined) return unknown;
    const records = Math.max(1, this.#order.children);
    const [expected, most] = [this.#accepted * records, (this.#accepted + this.#unsure) * records];
    const deadline = performance.now() + storedMsMax;
    const platform = this.#platform;
    const count = async () => {
      const ids = await platform.idsOf(this.prefix);
      const [fromTs, untilTs] = [this.#firstTs - hourMs, this.#nextTs + hourMs];
      return await platform.countPoints(ids, countedKey, fromTs, untilTs, this.#interrupted.signal);
    };
    for (let hasTold = false; ; ) {
      // A server under load may refuse reads for a while.
      const found = await count().catch((error: unknown) => sentenceOf(error));
      this.#interrupted.signal.throwIfAborted();
      const isLate = performance.now() > deadline;
      const failure = typeof found === 'string' ? found : '';
      if (typeof found === 'string') {
        if (isLate) return { isWhole: false, expected, found: 0, failure };
      } else if (found >= expected || isLate) {
        return { isWhole: found >= expected && found <= most, expected, found, failure };
      }
      if (!hasTold) say(`reading back, for ${storedMsMax / 1000} s at most`);
      hasTold = true;
      await sleep(500);
    }
  }

  /** Prints the measurements. Returns true when none was refused, cut short or too slow. */
  #tell(measurements: Measurement[]): boolean {
    const { p99MsMax, isSearch, repeat } = this.#order;
    const rows = measurements.map(({ rate, load }): Cell[] => {
      const { p50Ms, p90Ms, p99Ms, p999Ms, maxMs } = load.latency;
      const asked = rate === 0 ? 'max' : rate;
      return [
        asked,
        load.requestsPerSecond,
        p50Ms,
        p90Ms,
        p99Ms,
        p999Ms,
        maxMs,
        failuresOf(load),
        load.generatorCpuShare,
      ];
    });
    say('');
    const latencies = ['p50 ms', 'p90 ms', 'p99 ms', 'p99.9 ms', 'max ms'];
    table(['asked/s', 'acknowledged/s', ...latencies, 'failed', 'generator CPU'], rows);
    say('');
    if (isSearch) {
      const best = Math.max(0, ...measurements.filter((each) => holds(each, p99MsMax)).map(({ rate }) => rate));
      say(`highest rate with p99 at most ${figure(p99MsMax)} ms: ${figure(best)} messages/s`);
      const missed = missedText(measurements, best, p99MsMax);
      if (missed !== '') say(missed);
      tellFailures(measurements);
      return best > 0;
    }
    if (repeat > 1) for (const line of spreadOf(measurements)) say(line);
    tellFailures(measurements);
    return measurements.every((each) => holds(each, p99MsMax));
  }
}

/** Prints what was refused, which connections broke and what was never answered. */
function tellFailures(measurements: Measurement[]): void {
  const refused = Object.entries(addedUp(measurements.map(({ load }) => load.refused)));
  const reasons = refused.map(([reason, count]) => `${reason} (${figure(count)})`);
  if (refused.length > 0) say(`refused with ${reasons.join(', ')}, warm-up included`);
  const [broken, unanswered] = [sumOf(measurements, 'broken'), sumOf(measurements, 'unanswered')];
  const lost = sumOf(measurements, 'unsure') - unanswered;
  if (broken > 0) say(`connections that broke: ${figure(broken)}, with ${figure(lost)} messages that may be stored`);
  if (unanswered > 0) say(`never answered: ${figure(unanswered)} messages, which may be stored and are in no latency`);
}

function resultName({ kind }: TargetOrder): string {
  return `${kind}-target`;
}

/** Leaves out the secrets of an order: a result may be given to others. */
function publicPart({ password: _, tokens: __, ...order }: TargetOrder): object {
  return order;
}

function sumOf(measurements: Measurement[], count: 'broken' | 'unsure' | 'unanswered'): number {
  return measurements.reduce((sum, { load }) => sum + load[count], 0);
}

interface Verified {
  /** Undefined: the records could not be read back. */
  isWhole: boolean | undefined;
  expected: number;
  found: number;
  /** Why reading back failed; '' = it did not. */
  failure: string;
}

function verifiedText({ isWhole, expected, found, failure }: Verified): string {
  if (failure !== '') return `NOT verified: the ${figure(expected)} acknowledged records cannot be read (${failure})`;
  if (isWhole === undefined) return 'not verified: reading back needs --user';
  if (isWhole) return `verified: the server shows all ${figure(expected)} acknowledged records`;
  return `NOT verified: the server shows ${figure(found)} of ${figure(expected)} acknowledged records`;
}
