/**
 * The crash run: load over sockets while processes are killed in an order that a seed gives; afterwards every
 * acknowledged record must lie in ClickHouse exactly once, whole and unchanged. `npm test` runs a short one.
 */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../test/api.ts';
import { type Engine, startEngine } from '../test/engine.ts';
import { Random } from '../test/random.ts';
import { isGood, keysOfRecord, Ledger, type StoredRow, type Verdict } from './crash/ledger.ts';
import { CrashLoad } from './crash/load.ts';
import { CrashMqttLoad } from './crash/mqtt-load.ts';
import { damageTail } from './crash/tail.ts';

export interface CrashOptions {
  kills: number;
  seed: number;
  devices: number;
  /** Requests/s over HTTP on so many sockets, and messages/s over MQTT with one connection of each device. */
  sockets: number;
  rate: number;
  mqttRate: number;
  workers: number;
  say: (line: string) => void;
  /** No further kill is begun after this; for a test with a time budget. */
  secondsMax?: number;
}

export interface CrashOutcome extends Verdict {
  seed: number;
  kills: Record<string, number>;
  damagedTails: string[];
  /** HTTP answers by status (0 = the connection broke), PUBACKs by reason code (-1 = the connection broke). */
  answers: Record<number, number>;
  pubacks: Record<number, number>;
  quarantined: number;
  seconds: number;
  good: boolean;
}

type Victim = 'worker' | 'clickhouse' | 'postgres' | 'primary' | 'everything';

/** How often each is chosen. */
const weights: Record<Victim, number> = { worker: 5, clickhouse: 3, postgres: 2, primary: 2, everything: 1 };
const pauseMsMin = 200;
const pauseMsMax = 900;
/** More deaths than this of one child in a row right after its start would rightly count as a crash loop. */
const quickDeathsMax = 3;
const quickMs = 4_000;
const recordsPerDeviceMax = 400_000;
const shippedMsMax = 90_000;

export async function crashRun(options: CrashOptions): Promise<CrashOutcome> {
  const startedAt = performance.now();
  const engine = await startEngine({ workers: options.workers, env: { SHIP_LATE_SECONDS_MAX: '1' } });
  try {
    const tokens = await createSenders(engine, options.devices);
    const ledger = new Ledger(options.devices, recordsPerDeviceMax, Date.now() - 3_600_000);
    const { port, mqttPort } = engine;
    const load = new CrashLoad({ port, tokens, sockets: options.sockets, rate: options.rate, ledger });
    const mqttLoad = new CrashMqttLoad({ port: mqttPort, tokens, rate: options.mqttRate, ledger });
    const killer = new Killer(engine, options);
    try {
      await killer.run();
    } finally {
      await Promise.all([load.stop(), mqttLoad.stop()]);
    }
    if (!engine.running) await engine.start();
    await eventually(async () => (await engine.readiness()) === 200, 30_000);
    const verdict = await settledVerdict(engine, ledger);
    return {
      ...verdict,
      seed: options.seed,
      kills: killer.kills,
      damagedTails: killer.damagedTails,
      answers: load.answers,
      pubacks: mqttLoad.answers,
      quarantined: countQuarantined(engine.dataDir),
      seconds: (performance.now() - startedAt) / 1000,
      good: isGood(verdict),
    };
  } finally {
    await engine.destroy().catch(async (error: unknown) => {
      await engine.killAll();
      throw error;
    });
  }
}

class Killer {
  readonly kills: Record<string, number> = {};
  readonly damagedTails: string[] = [];
  readonly #engine: Engine;
  readonly #options: CrashOptions;
  readonly #random: Random;
  readonly #recent = new Map<string, { at: number; inARow: number }>();

  constructor(engine: Engine, options: CrashOptions) {
    this.#engine = engine;
    this.#options = options;
    this.#random = new Random(options.seed);
  }

  async run(): Promise<void> {
    const { kills, secondsMax = Infinity, say } = this.#options;
    const deadline = performance.now() + secondsMax * 1000;
    let done = 0;
    while (done < kills && performance.now() < deadline) {
      await sleep(this.#random.between(pauseMsMin, pauseMsMax));
      if (!this.#engine.running) throw new Error(`the engine ended by itself:\n${this.#engine.tail()}`);
      const victim = this.#choose();
      const killed = await this.#kill(victim);
      if (!killed) continue;
      done += 1;
      this.kills[victim] = (this.kills[victim] ?? 0) + 1;
      if (done % 10 === 0) say(`${done} of ${kills} kills`);
    }
  }

  #choose(): Victim {
    const bag = Object.entries(weights).flatMap(([victim, weight]) => new Array<Victim>(weight).fill(victim as Victim));
    return this.#random.pick(bag);
  }

  async #kill(victim: Victim): Promise<boolean> {
    if (victim === 'primary') {
      await this.#engine.kill('primary');
      await this.#engine.exit();
      await this.#startAgain();
      return true;
    }
    if (victim === 'everything') {
      await this.#engine.killAll();
      this.#damage();
      await this.#startAgain();
      return true;
    }
    const role = victim === 'worker' ? `worker-${this.#random.below(this.#options.workers)}` : victim;
    if (!this.#mayDie(role)) return false;
    return (await this.#engine.kill(role)) !== undefined;
  }

  async #startAgain(): Promise<void> {
    this.#recent.clear();
    await this.#engine.start();
  }

  #mayDie(role: string): boolean {
    const now = performance.now();
    const before = this.#recent.get(role);
    const inARow = before && now - before.at < quickMs ? before.inARow + 1 : 1;
    if (inARow > quickDeathsMax) return false;
    this.#recent.set(role, { at: now, inARow });
    return true;
  }

  #damage(): void {
    for (let worker = 0; worker < this.#options.workers; worker += 1) {
      const damage = damageTail(join(this.#engine.dataDir, 'journal', `worker-${worker}`), this.#random);
      if (damage) this.damagedTails.push(damage);
    }
  }
}

/** Devices, each with one point that tells its number beside the number that the store knows it by. */
async function createSenders(engine: Engine, count: number): Promise<string[]> {
  const tokens: string[] = [];
  for (let n = 0; n < count; n += 1) {
    const { token } = await engine.api.createDevice(`crash-${n}`);
    tokens.push(token);
    const status = await engine.api.postTelemetry(token, `{"number":${n}}`);
    if (status !== 200) throw new Error(`the first message of device ${n} was answered ${status}`);
  }
  return tokens;
}

/** The verdict once nothing is missing, or what is still wrong at the deadline. */
async function settledVerdict(engine: Engine, ledger: Ledger): Promise<Verdict> {
  const deadline = performance.now() + shippedMsMax;
  for (;;) {
    const verdict = await judge(engine, ledger).catch(() => undefined);
    if (verdict?.missing === 0 || (verdict && performance.now() > deadline)) return verdict;
    if (performance.now() > deadline) return judge(engine, ledger);
    await sleep(500);
  }
}

async function judge(engine: Engine, ledger: Ledger): Promise<Verdict> {
  const verdict = ledger.emptyVerdict();
  const numbers = await engine.clickhouse("SELECT device, int FROM telemetry FINAL WHERE key = 'number'");
  for (const [device, n] of numbers) {
    const rows = await engine.clickhouse(
      `SELECT ts, key, multiIf(kind = 2, toString(int), kind = 3, toString(num), text) FROM telemetry FINAL ` +
        `WHERE device = ${device} AND key IN (${keysOfRecord.map((key) => `'${key}'`).join(', ')})`,
    );
    ledger.check(
      Number(n),
      rows.map(([ts, key, value]): StoredRow => ({ ts: Number(ts), key: key!, value: value! })),
      verdict,
    );
  }
  if (numbers.length < ledger.devices) verdict.missing += ledger.devices - numbers.length;
  return verdict;
}

function countQuarantined(dataDir: string): number {
  const journals = join(dataDir, 'journal');
  let count = 0;
  for (const name of readdirSync(journals)) {
    const directory = join(journals, name, 'quarantine');
    if (existsSync(directory)) count += readdirSync(directory).filter((file) => /\.(json|rows)$/.test(file)).length;
  }
  return count;
}
