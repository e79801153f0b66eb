/**
 * A load on a server that runs already (`--target`): creates devices, offers the load, reads back what was acknowledged
 * and removes the devices, also after an error or Ctrl-C.
 */

import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { hourMs } from '../../src/base/durations.ts';
import type { Device } from '../../test/harness/api.ts';
import { idleShare } from '../cpu.ts';
import { sentenceOf } from '../error-sentence.ts';
import { totalOf } from '../load/counts.ts';
import { runHttpLoad } from '../load/http/http.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import { endGenerators, type LoadResult, limitOfMachine } from '../load/processes.ts';
import { WaitView } from '../load/wait-view.ts';
import { machineText, thisMachine } from '../machine.ts';
import { figure, say, writeResult, writeUnfinished } from '../report.ts';
import { addressOf, planOf, removalCommand, type TargetOrder } from './order.ts';
import { earlyEndText, sayMeasurements } from './outcome.ts';
import { type NewDevice, Platform, type Removal } from './platform.ts';
import { reach } from './reach.ts';
import { findRate, type Measurement } from './search.ts';
import { type ServerFacts, serverMachineText, serverName } from './server.ts';

const storedMsMax = 60_000;
/** The same for a server that no longer answered during the load. */
const storedHurriedMsMax = 5_000;
/** The key that every record has. */
const countedKey = 'temperature';
const tokenDigits = 8;
const exitInterrupted = 130;
const removeTriesMax = 3;
const removeRetryMs = 1_000;

/**
 * Returns false when a bound was missed, a message refused, an acknowledged record not found, or a device not removed.
 * The first Ctrl-C removes the devices; the second one ends the command at once, and says what is left.
 */
export async function runTarget(order: TargetOrder): Promise<boolean> {
  const isRemoval = order.remove !== '';
  if (!isRemoval) for (const [name, text] of planOf(order)) say(`${name.padEnd(10)}${text}`);
  if (order.isDryRun) return true;
  const run = new TargetRun(order);
  const interrupt = (signal: NodeJS.Signals) => {
    // Each line that cannot be printed is another SIGPIPE.
    if (run.isInterrupted && signal === 'SIGPIPE') return;
    if (run.isInterrupted || isRemoval) {
      say(`\nended by ${signal}${run.leftText() === '' ? '' : `: ${run.leftText()}`}`);
      process.exit(exitInterrupted);
    }
    say(`\ninterrupted by ${signal}${run.hasDevices ? '; the devices are removed, unless a second one comes' : ''}`);
    run.interrupt();
    endGenerators();
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGPIPE'] as const;
  for (const signal of signals) process.on(signal, interrupt);
  let good = false;
  try {
    if (isRemoval) return await run.removeLeft();
    await run.prepare();
    good = await run.measure();
  } catch (error) {
    if (!run.isInterrupted) throw error;
    writeUnfinished(resultName(order), publicPart(order), run.server);
  } finally {
    // After an error the error counts.
    good = (await run.close()) && good;
    if (order.keep && run.hasCreated) say(`kept: ${run.leftText()}`);
    for (const signal of signals) process.off(signal, interrupt);
  }
  // Also after a result that is whole: the command was interrupted while it read back or removed the devices.
  if (run.isInterrupted) process.exitCode = exitInterrupted;
  return good && !run.isInterrupted;
}

/** Runs whose devices were not removed yet. */
const open = new Set<TargetRun>();

let abandon: () => void = () => {};
const abandoned = new Promise<void>((resolve) => {
  abandon = resolve;
});

/** Ends the runs that an interrupted scenario has left, and removes their devices. */
export async function closeTargets(): Promise<void> {
  for (const run of open) run.interrupt();
  await Promise.race([Promise.all([...open].map((run) => run.close())), abandoned]);
}

/** `closeTargets` does not wait any more. Prints which devices are left. */
export function abandonTargets(): void {
  for (const run of open) if (run.leftText() !== '') say(run.leftText());
  abandon();
}

/** The devices of a run at a target, and the loads that it offers. */
export class TargetRun {
  readonly #order: TargetOrder;
  readonly #interrupted = new AbortController();
  /** The beginning of all names that this run creates. */
  readonly prefix: string;
  #platform: Platform | undefined;
  #tokens: string[];
  #creating: Promise<Device[]> | undefined;
  #closing: Promise<boolean> | undefined;
  #accepted = 0;
  #unsure = 0;
  #server: ServerFacts;
  /** The server no longer answered: what is left to do does not wait long for it. */
  #isHurried = false;
  /** How far the removal of the devices is; undefined = they were not listed yet. */
  #removal: Removal | undefined;
  /** The points that this run writes have times from here to `#nextTs`, which is exclusive. */
  readonly #firstTs = Date.now() - 6 * hourMs;
  #nextTs = this.#firstTs;

  constructor(order: TargetOrder) {
    this.#order = order;
    this.#tokens = order.tokens;
    this.prefix = order.remove === '' ? `bench-${randomBytes(3).toString('hex')}-` : order.remove;
    this.#server = { address: addressOf(order), isThisMachine: false, version: '' };
  }

  /** What is known of the server from outside. */
  get server(): ServerFacts {
    return this.#server;
  }

  /** Devices were created, or are being created, that are to be removed. */
  get hasDevices(): boolean {
    return this.hasCreated && !this.#order.keep;
  }

  get hasCreated(): boolean {
    return this.#creating !== undefined;
  }

  /** Says which devices of this run are at the server, and how they are removed; '' = none. */
  leftText(): string {
    const { devices, children, remove } = this.#order;
    if (!this.hasCreated && remove === '') return '';
    const left = this.#removal?.left;
    if (left === 0) return '';
    const isExact = children === 0 && this.#tokens.length === devices;
    const made = `${isExact ? '' : 'up to '}${figure(devices * (1 + children))} devices`;
    const most = remove === '' ? made : 'the devices';
    const which = left === undefined ? most : `${figure(left)} device${left === 1 ? '' : 's'}`;
    const command = removalCommand(this.#order, this.prefix);
    return `${which} whose names begin with ${this.prefix} ${left === 1 ? 'is' : 'are'} left. To remove them: ${command}`;
  }

  get isInterrupted(): boolean {
    return this.#interrupted.signal.aborted;
  }

  /** What goes on ends at its next call to the server, with an error. */
  interrupt(): void {
    this.#interrupted.abort();
  }

  /** Signs in and creates the devices. */
  async prepare(): Promise<void> {
    const isThisMachine = await reach(this.#order);
    this.#server = { ...this.#server, isThisMachine };
    if (this.#order.rest !== '') await this.#create();
    say(`${'server'.padEnd(10)}${serverName(this.#server)}`);
    say(`${''.padEnd(10)}its machine: ${serverMachineText(this.#server)}`);
    say(`${'generator'.padEnd(10)}${machineText(thisMachine())}\n`);
    if (this.#order.kind === 'gateway' && this.#platform !== undefined) await this.#createChildren();
  }

  async #create(): Promise<void> {
    const { devices, kind } = this.#order;
    this.#platform = await Platform.signIn(this.#order);
    this.#interrupted.signal.throwIfAborted();
    this.#server = { ...this.#server, version: await this.#platform.serverVersion().catch(() => '') };
    open.add(this);
    const rows = Array.from({ length: devices }, (_, n): NewDevice => {
      const number = String(n).padStart(tokenDigits, '0');
      const name = `${this.prefix}${number}`;
      return { name, accessToken: name.replaceAll('-', ''), isGateway: kind === 'gateway' };
    });
    const startedAt = performance.now();
    const waiting = new WaitView(`creating ${figure(devices)} devices`);
    this.#creating = this.#platform.create(rows, this.#interrupted.signal).finally(() => waiting.end());
    this.#tokens = (await this.#creating).map(({ token }) => token);
    const seconds = figure((performance.now() - startedAt) / 1000);
    say(`${'created'.padEnd(10)}${figure(devices)} in ${seconds} s${limitedText(this.#platform)}`);
  }

  /** The first messages of a gateway create its devices. */
  async #createChildren(): Promise<void> {
    const { devices } = this.#order;
    const { earlyEnd, refused } = await this.offer({ rate: devices, warmupSeconds: 0, rampSeconds: 0, seconds: 2 });
    if (earlyEnd !== undefined)
      throw new Error(`the devices of the gateways are not created: ${earlyEndText(earlyEnd, refused)}`);
  }

  async measure(): Promise<boolean> {
    const { isSearch, repeat, rate } = this.#order;
    const measurements = isSearch ? await findRate(this.#order, (each) => this.#measureAt(each)) : [];
    for (let n = 0; !isSearch && n < repeat && !this.#isHurried; n += 1) measurements.push(await this.#measureAt(rate));
    const verified = await this.verify();
    const { isGood, missed } = sayMeasurements(this.#order, measurements);
    say(verifiedText(verified));
    const result = { measurements, verified, missed };
    const isWritten = writeResult(resultName(this.#order), publicPart(this.#order), result, this.#server);
    return isGood && verified.isWhole !== false && isWritten;
  }

  /** Removes the devices of an earlier run. */
  async removeLeft(): Promise<boolean> {
    this.#platform = await Platform.signIn(this.#order);
    try {
      return await this.#removeAll(this.#platform);
    } finally {
      this.#platform.close();
    }
  }

  /** Removes the devices that this run has created. Returns false when the server does not let it. */
  close(): Promise<boolean> {
    this.#closing ??= this.#removeCreated().finally(() => {
      open.delete(this);
      this.#platform?.close();
    });
    return this.#closing;
  }

  async #removeCreated(): Promise<boolean> {
    if (this.#creating === undefined || this.#platform === undefined || this.#order.keep) return true;
    // A device that is being created is not listed yet.
    await this.#creating.catch(() => {});
    return await this.#removeAll(this.#platform);
  }

  async #removeAll(platform: Platform): Promise<boolean> {
    const waiting = new WaitView('removing the devices');
    platform.limited.answers = platform.limited.ms = 0;
    try {
      return await this.#remove(platform, (removal) => {
        this.#removal = removal;
        const { removed, left } = removal;
        waiting.note(`${figure(removed)} removed, ${figure(left)} left${limitedText(platform)}`);
      });
    } finally {
      waiting.end();
    }
  }

  async #remove(platform: Platform, seen: (removal: Removal) => void): Promise<boolean> {
    for (let tries = 1; ; tries += 1) {
      try {
        const removed = await platform.removeAll(this.prefix, seen);
        const isNone = removed === 0 && this.#order.remove !== '';
        if (isNone) say(`no device has a name that begins with ${this.prefix}`);
        else say(`removed ${figure(removed)} device${removed === 1 ? '' : 's'}${limitedText(platform)}`);
        return true;
      } catch (error) {
        if (tries < removeTriesMax) {
          await sleep(removeRetryMs);
          continue;
        }
        // The server may list devices that it has removed.
        say(`NOT removed: ${this.leftText() || `devices whose names begin with ${this.prefix}`}`);
        say(`  because: ${sentenceOf(error)}`);
        return false;
      }
    }
  }

  async #measureAt(rate: number): Promise<Measurement> {
    const { rampSeconds, warmupSeconds, seconds } = this.#order;
    this.#interrupted.signal.throwIfAborted();
    const idleBefore = await idleShare();
    const load = await this.offer({ rate, rampSeconds, warmupSeconds, seconds });
    const { p50Ms, p99Ms } = load.latency;
    say(`${figure(load.requestsPerSecond)} messages/s: p50 ${figure(p50Ms)} ms, p99 ${figure(p99Ms)} ms`);
    return { rate, load, idleBefore };
  }

  async offer(times: {
    rate: number;
    rampSeconds: number;
    warmupSeconds: number;
    seconds: number;
  }): Promise<LoadResult> {
    this.#interrupted.signal.throwIfAborted();
    const { kind, server, connections, children, processes, points, window, level, qos, giveUpSeconds } = this.#order;
    const { authority: hostHeader, host, port, isTls } = server;
    const place = { host, port, tls: isTls ? this.#order.tls : undefined };
    const common = { ...place, processes, points, giveUpSeconds, firstTs: this.#nextTs, stepMs: 1, ...times };
    const load =
      kind === 'http'
        ? await runHttpLoad({ ...common, hostHeader, tokens: this.#tokens, sockets: connections })
        : await runMqttLoad({ ...common, clients: this.#clients(children), window, level, qos, reconnects: true });
    if (!this.#server.isThisMachine) load.invalid ||= limitOfMachine(load);
    this.#accepted += load.accepted;
    this.#unsure += load.unsure;
    // Times of the next load begin after all times of this one, because no device sends more messages than all devices
    // together. A refused message has taken a time, too.
    this.#nextTs += load.accepted + load.unsure + totalOf(load.refused) + connections * window + 1;
    if (load.earlyEnd !== undefined) {
      this.#isHurried = true;
      this.#platform?.hurry();
    }
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
    const msMax = this.#isHurried ? storedHurriedMsMax : storedMsMax;
    const deadline = performance.now() + msMax;
    const platform = this.#platform;
    const count = async () => {
      const ids = await platform.idsOf(this.prefix);
      const [fromTs, untilTs] = [this.#firstTs - hourMs, this.#nextTs + hourMs];
      return await platform.countPoints(ids, countedKey, fromTs, untilTs, this.#interrupted.signal);
    };
    const waiting = new WaitView('reading back');
    const left = () => ({ leastSeconds: 0, mostSeconds: Math.max(0, deadline - performance.now()) / 1000 });
    waiting.note('', left());
    try {
      for (;;) {
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
        waiting.note(failure === '' ? `${figure(Number(found))} of ${figure(expected)} found` : failure, left());
        await sleep(500);
      }
    } finally {
      waiting.end();
    }
  }
}

/** Says how often a rate limit has answered, and what that took; '' = never. */
function limitedText({ limited: { answers, ms } }: Platform): string {
  return answers === 0 ? '' : `; the server answered 429 ${figure(answers)} times: ${figure(ms / 1000)} s of waiting`;
}

function resultName({ kind }: TargetOrder): string {
  return `${kind}-target`;
}

/** Leaves out the secrets of an order: a result may be given to others. */
function publicPart({ password: _, apiKey: __, tokens: ___, remove: ____, tls, ...order }: TargetOrder): object {
  return { ...order, ...(tls && { acceptsAnyCertificate: tls.isInsecure }) };
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
  if (isWhole === undefined) return 'not verified: reading back needs --user or --api-key';
  if (isWhole && expected === 0) return 'not verified: nothing was acknowledged, so there is nothing to read back';
  if (isWhole) return `verified: the server shows all ${figure(expected)} acknowledged records`;
  return `NOT verified: the server shows ${figure(found)} of ${figure(expected)} acknowledged records`;
}
