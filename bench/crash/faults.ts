/**
 * The faults of a crash run, in an order that follows from the seed alone: processes killed, stopped and starved, the
 * instance restarted with another number of workers, the clock set. Each fault is undone before the next but one
 * begins.
 */

import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../../test/harness/engine.ts';
import { Random } from '../../test/harness/random.ts';
import type { Machine } from './machine.ts';
import { damageTail } from './tail.ts';

/** The weight of each kind of fault. */
export const allFaults = {
  'kill worker': 6,
  'kill clickhouse': 3,
  'kill postgres': 2,
  'kill primary': 2,
  'kill everything': 2,
  'clickhouse dies in a loop': 1,
  'postgres dies in a loop': 1,
  'stop worker': 2,
  'stop clickhouse': 2,
  'stop postgres': 2,
  'stop primary': 1,
  'stop everything': 1,
  'memory of clickhouse': 2,
  'memory of postgres': 1,
  'files of clickhouse': 1,
  'files of postgres': 1,
  'files of worker': 1,
  'disk full': 2,
  'other workers': 3,
  'small clickhouse': 1,
  'clock by seconds': 2,
  'clock by an hour': 1,
};
export type FaultKind = keyof typeof allFaults;

const pauseMs = { min: 200, max: 1_200 };
const holdMsMin = 500;
/** One fault in `oneIn` lasts `share` times longer than the others may. */
const longHold = { oneIn: 12, share: 4 };
const secondFaultShare = 0.25;
const secondFaults: FaultKind[] = ['kill worker', 'kill worker', 'kill clickhouse', 'kill postgres'];
const workersMax = 4;
const loopDeaths = 6;
/** More deaths of one worker in a row right after its start would rightly end the service. */
const quickDeathsMax = 3;
const quickMs = 4_000;
const startsMax = 3;
const smallMemoryBytes = 40 * 1024 * 1024;

interface FaultsOptions {
  engine: Engine;
  machine: Machine;
  random: Random;
  workers: number;
  weights: Partial<Record<FaultKind, number>>;
  /** The usual time for which a process is stopped or starved. */
  holdMsMax: number;
  say: (line: string) => void;
  signal?: AbortSignal | undefined;
}

interface Fault {
  kind: FaultKind;
  second: FaultKind | undefined;
  pauseMs: number;
  holdMs: number;
  /** Decides all other choices of the fault. */
  dice: number;
}

export class Faults {
  readonly #options: FaultsOptions;
  readonly #bag: FaultKind[];
  readonly #recent = new Map<number, { at: number; inARow: number }>();
  readonly #startedAt = performance.now();
  #workers: number;
  readonly done: Record<string, number> = {};
  /** The faults with their times, for the reader of a failure. */
  readonly log: string[] = [];
  readonly damagedTails: string[] = [];
  /** The engine ended unexpectedly, or did not stop or start as it should. */
  readonly ends: string[] = [];

  constructor(options: FaultsOptions) {
    this.#options = options;
    this.#workers = options.workers;
    const { disk, hasClock } = options.machine;
    const possible = Object.entries(options.weights).filter(
      ([kind]) => (kind !== 'disk full' || disk !== undefined) && (!kind.startsWith('clock') || hasClock),
    );
    this.#bag = possible.flatMap(([kind, weight]) => new Array<FaultKind>(weight).fill(kind as FaultKind));
    for (const kind of Object.keys(options.weights)) {
      if (!this.#bag.includes(kind as FaultKind)) options.say(`"${kind}" is left out: this machine does not allow it`);
    }
  }

  get workers(): number {
    return this.#workers;
  }

  /** Makes faults until `over` returns true; `progress` resolves when the next fault may come. */
  async run(over: () => boolean, progress: () => Promise<void>): Promise<void> {
    for (let n = 1; !over(); n += 1) {
      const fault = this.#draw(n);
      await this.#sleep(fault.pauseMs);
      if (over()) return;
      try {
        await this.#carryOut(fault);
        if (!this.#options.engine.running) throw new Error('the engine ended by itself');
      } catch (error) {
        this.#options.signal?.throwIfAborted();
        this.#ended(error);
        await this.#options.engine.killAll();
        await this.start();
      }
      await progress();
    }
  }

  /**
   * Takes the same number of draws each time, and no other code draws: the outcome of a fault does not change later
   * faults.
   */
  #draw(n: number): Fault {
    const { random, holdMsMax } = this.#options;
    const kind = random.pick(this.#bag);
    const second = random.pick(secondFaults);
    const hasSecond = random.next() < secondFaultShare;
    const pause = random.between(pauseMs.min, pauseMs.max);
    const hold = random.between(holdMsMin, holdMsMax);
    return {
      kind,
      second: hasSecond ? second : undefined,
      pauseMs: pause,
      holdMs: n % longHold.oneIn === 0 ? Math.max(hold, longHold.share * holdMsMax) : hold,
      dice: random.next(),
    };
  }

  async #carryOut(fault: Fault): Promise<void> {
    const { kind, second, dice } = fault;
    this.done[kind] = (this.done[kind] ?? 0) + 1;
    this.note(`${this.#seconds()} s: ${kind}${second ? ` + ${second}` : ''}`);
    const hold = async () => {
      await this.#sleep(fault.holdMs / 2);
      if (second) await this.#kill(second.slice('kill '.length), dice);
      await this.#sleep(fault.holdMs / 2);
    };
    const { engine, machine } = this.#options;
    const [verb, ...words] = kind.split(' ');
    const role = words.at(-1)!;
    switch (verb) {
      case 'kill':
        return this.#kill(role, dice);
      case 'clickhouse':
      case 'postgres':
        return this.#loop(verb);
      case 'stop':
        return this.#during(role, dice, (pid) => machine.stop(pid, role !== 'primary' && role !== 'worker'), hold);
      case 'memory':
        return this.#during(role, dice, (pid) => machine.limitMemory(pid, 4 * 1024 * 1024), hold);
      case 'files':
        return this.#during(role, dice, (pid) => machine.limitFiles(pid, 2), hold);
      case 'disk':
        machine.fillDisk(Math.floor(dice * 256) * 1024);
        try {
          await hold();
        } finally {
          machine.freeDisk();
        }
        return;
      case 'other':
        if (dice < 0.5) await this.stop();
        else await engine.killAll();
        this.#workers = 1 + (Math.floor(dice * 1000) % workersMax);
        this.note(`  with WORKERS=${this.#workers}`);
        return this.start();
      case 'small':
        await this.stop();
        // A store with this little memory may not be able to prepare its tables: the workers serve all the same.
        await this.start({ CLICKHOUSE_EMBEDDED_MEMORY_BYTES_MAX: String(smallMemoryBytes) }, 'workers');
        await hold();
        await this.stop();
        return this.start();
      case 'clock': {
        // Sets the clock ahead, late, or right again.
        const turn = [1, -1, 0][Math.floor(dice * 1000) % 3]!;
        const sizeMs = role === 'hour' ? 3_600_000 : 500 + dice * 3_500;
        machine.setClock(turn * sizeMs);
        this.note(`  clock off by ${machine.clockOffsetMs.toFixed(0)} ms`);
        await hold();
        // A host this far from its database's clock is not ready, and no start of it would ever be.
        if (role === 'hour') machine.setClock(0);
        return;
      }
      default:
        throw new Error(`no fault "${kind}"`);
    }
  }

  /** Applies `begin` to a process while `hold` lasts. */
  async #during(role: string, dice: number, begin: (pid: number) => () => void, hold: () => Promise<void>) {
    const name = role === 'everything' ? 'primary' : role;
    const pid = this.#options.engine.pids().get(name === 'worker' ? this.#workerOf(dice) : name);
    if (pid === undefined) return;
    const undo = begin(pid);
    try {
      await hold();
    } finally {
      undo();
    }
  }

  #workerOf(dice: number): string {
    return `worker-${Math.floor(dice * this.#workers)}`;
  }

  async #kill(victim: string, dice: number): Promise<void> {
    const { engine } = this.#options;
    if (victim === 'primary') {
      if ((await engine.kill('primary')) === undefined) throw new Error('the engine has no primary');
      await engine.exit();
      return this.start();
    }
    if (victim === 'everything') {
      await engine.killAll();
      this.#damage(new Random(Math.floor(dice * 2 ** 32)));
      return this.start();
    }
    if (victim !== 'worker') {
      await engine.kill(victim);
      return;
    }
    const role = this.#workerOf(dice);
    if (this.#mayDie(Math.floor(dice * this.#workers))) await engine.kill(role);
  }

  /** Kills a store each time as soon as it runs. */
  async #loop(role: string): Promise<void> {
    const { engine } = this.#options;
    const deadline = performance.now() + 30_000;
    for (let deaths = 0; deaths < loopDeaths && performance.now() < deadline && engine.running; ) {
      if ((await engine.kill(role)) !== undefined) deaths += 1;
      await this.#sleep(200);
    }
  }

  /** Stops the engine with SIGTERM, and notes any end that is not clean. */
  async stop(): Promise<void> {
    const { engine } = this.#options;
    try {
      await engine.stop();
    } catch (error) {
      this.#ended(error);
      await engine.killAll();
    }
  }

  /** Starts the ended processes, with the present number of workers. */
  async start(extra: Record<string, string> = {}, awaited: 'workers' | 'all' = 'all'): Promise<void> {
    const { engine, signal } = this.#options;
    this.#recent.clear();
    signal?.throwIfAborted();
    for (let n = 1; ; n += 1) {
      try {
        return await engine.start({ WORKERS: String(this.#workers), ...extra }, awaited);
      } catch (error) {
        this.#options.signal?.throwIfAborted();
        this.#ended(error);
        await engine.killAll();
        if (n === startsMax) throw error;
      }
    }
  }

  note(line: string): void {
    this.log.push(line);
    this.#options.say(line);
  }

  #ended(error: unknown): void {
    const { engine, say } = this.#options;
    const [reason] = (error instanceof Error ? error.message : String(error)).split('\n');
    const lines = engine.output.split('\n').filter((line) => /^(\{|millrace:)/.test(line));
    const text = `${this.#seconds()} s, after "${this.log.at(-1)}": ${reason}\n${lines.slice(-6).join('\n')}`;
    this.ends.push(text);
    say(text);
  }

  #mayDie(worker: number): boolean {
    const now = performance.now();
    const before = this.#recent.get(worker);
    const inARow = before && now - before.at < quickMs ? before.inARow + 1 : 1;
    if (inARow > quickDeathsMax) return false;
    this.#recent.set(worker, { at: now, inARow });
    return true;
  }

  #damage(random: Random): void {
    const journals = join(this.#options.engine.dataDir, 'journal');
    for (const name of readdirSync(journals)) {
      if (!/^worker-\d+$/.test(name)) continue;
      const damage = damageTail(join(journals, name), random);
      if (damage) this.damagedTails.push(damage);
    }
  }

  async #sleep(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.#options.signal });
  }

  #seconds(): string {
    return ((performance.now() - this.#startedAt) / 1000).toFixed(1);
  }
}
