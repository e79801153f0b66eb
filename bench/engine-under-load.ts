/**
 * An engine prepared for a benchmark: devices with known tokens, the load of a generator, and the proof that everything
 * that was acknowledged lies in ClickHouse.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Api, Device } from '../test/harness/api.ts';
import { type Engine, type EngineOptions, startEngine } from '../test/harness/engine.ts';
import { cpuBetween, cpuByRole } from './cpu.ts';
import { totalOf } from './load/counts.ts';
import { runHttpLoad } from './load/http/http.ts';
import { recordPoints } from './load/moving-record.ts';
import { type LoadResult, sayFailures } from './load/processes.ts';
import { WaitView } from './load/wait-view.ts';
import { figure } from './report.ts';
import type { BenchSettings } from './settings.ts';
import { watchEngine } from './watch-engine.ts';

const creationsAtOnce = 5_000;
const drainMsMax = 300_000;
const mergesMsMax = 60_000;
/** A merge may begin soon after another one has ended. */
const withoutMergesMs = 1_000;
const mergesAskedMs = 100;
const stepMs = 100;

export interface MeasuredLoad extends LoadResult {
  /** Messages acknowledged and found, divided by the time from the first message to the last row in ClickHouse. */
  storedRequestsPerSecond: number;
  drainSeconds: number;
  cpuMicrosecondsPerRequest: Record<string, number>;
  verified: boolean;
}

/** The order of a generator. None of its (device, ts) may be below `firstTs`. */
export interface LoadOrder {
  /** Messages/s; 0 = closed loop. */
  rate: number;
  seconds: number;
  warmupSeconds: number;
  firstTs: number;
  stepMs: number;
  /** Called when all connections are open, before the first message. */
  onConnected?: () => void;
  /** Called with the number of acknowledged messages; the connections stay open until this call has ended. */
  onAnswered?: (accepted: number) => Promise<void>;
}

/** A generator: offers the load and waits for the answers, not for the store. */
export type Generator = (engine: Engine, tokens: string[], order: LoadOrder) => Promise<LoadResult>;

/** Telemetry over HTTP, as config/bench.yaml says. */
export function httpGenerator({ sockets, processes }: BenchSettings['http']): Generator {
  return (engine, tokens, order) =>
    runHttpLoad({ host: '127.0.0.1', port: engine.port, tokens, sockets, processes, ...order });
}

/** Returns the token that `createFleet` gives device `n`; all have one width, so requests have one length. */
export function tokenOf(prefix: string, n: number): string {
  return `${prefix}${String(n).padStart(15, '0')}`;
}

const benchPrefix = 'bench';

/** Returns the tokens of so many devices, as `createDevices` gives them: a server without devices takes the same. */
export function benchTokens(count: number): string[] {
  return Array.from({ length: count }, (_, n) => tokenOf(benchPrefix, n));
}

/** Makes devices named `prefix-n`, with the tokens of `tokenOf`. */
export async function createFleet(
  api: Api,
  prefix: string,
  count: number,
  fieldsOf: (n: number) => object = () => ({}),
): Promise<Device[]> {
  const fleet: Device[] = [];
  while (fleet.length < count) {
    const size = Math.min(creationsAtOnce, count - fleet.length);
    const devices = Array.from({ length: size }, (_, i) => {
      const n = fleet.length + i;
      return { name: `${prefix}-${n}`, accessToken: tokenOf(prefix, n), ...fieldsOf(n) };
    });
    fleet.push(...(await api.createDevices(devices)));
  }
  return fleet;
}

/** Makes devices that only send, and returns their tokens. */
export async function createDevices(api: Api, count: number, fields: object = {}): Promise<string[]> {
  return (await createFleet(api, benchPrefix, count, () => fields)).map(({ token }) => token);
}

export class EngineUnderLoad {
  readonly engine: Engine;
  readonly tokens: string[];
  readonly #generator: Generator;
  readonly #unwatch: () => void;
  /** Records of four points in each message. */
  readonly #messageRecords: number;
  /** Messages acknowledged since the engine was empty. */
  accepted = 0;
  /** Messages that are stored or not: their connection broke, or their store was late and the journal has them. */
  unsure = 0;
  /** Rows of other loads, which were stored earlier. */
  #otherRows = 0;
  /** Each phase sends after the ts of the previous one, so that no (device, ts) is repeated. */
  #nextTs = Date.now() - 6 * 3_600_000;

  constructor(engine: Engine, tokens: string[], generator: Generator, messageRecords = 1) {
    this.engine = engine;
    this.tokens = tokens;
    this.#generator = generator;
    this.#messageRecords = messageRecords;
    this.#unwatch = watchEngine(engine);
  }

  static async start(
    workers: number,
    devices: number,
    generator: Generator,
    options: EngineOptions = {},
  ): Promise<EngineUnderLoad> {
    const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' }, ...options });
    const tokens = await createDevices(engine.api, devices);
    return new EngineUnderLoad(engine, tokens, generator);
  }

  /** Sets the present rows of ClickHouse apart: they are not of this load, and none is a `temperature`. */
  async setApart(): Promise<void> {
    this.#otherRows = await this.#count('SELECT count() FROM telemetry FINAL');
  }

  /** Sets `rows` more apart: those of another sender, which ClickHouse has. */
  setMoreApart(rows: number): void {
    this.#otherRows += rows;
  }

  /** Runs the load, waits until ClickHouse has every acknowledged row, and counts its cost. */
  async load(rate: number, seconds: number, warmupSeconds: number, generator = this.#generator): Promise<MeasuredLoad> {
    const pids = this.engine.pids();
    let cpuBefore = cpuByRole(pids);
    let startedAt = performance.now();
    const onConnected = () => {
      cpuBefore = cpuByRole(pids);
      startedAt = performance.now();
    };
    let [endedAt, storedAt] = [0, 0];
    let cpu: Record<string, number> = {};
    const onAnswered = async () => {
      endedAt = performance.now();
      await this.stored();
      storedAt = performance.now();
      cpu = cpuBetween(cpuBefore, cpuByRole(pids));
    };
    const result = await this.offer(rate, seconds, warmupSeconds, generator, { onConnected, onAnswered });
    const perRequest = Object.entries(cpu).map(([role, ms]) => [role, (ms * 1000) / result.accepted] as const);
    return {
      ...result,
      storedRequestsPerSecond: (result.accepted / (storedAt - startedAt)) * 1000,
      drainSeconds: (storedAt - endedAt) / 1000,
      cpuMicrosecondsPerRequest: Object.fromEntries(perRequest),
      verified: await this.verify(),
    };
  }

  /** Offers the load and waits for answers, not for the store. */
  async offer(
    rate: number,
    seconds: number,
    warmupSeconds: number,
    generator = this.#generator,
    { onConnected = () => {}, onAnswered = async () => {} } = {},
  ): Promise<LoadResult> {
    const firstTs = this.#nextTs;
    const answered = async (accepted: number) => {
      this.accepted += accepted;
      await onAnswered();
    };
    const order = { rate, seconds, warmupSeconds, firstTs, stepMs, onConnected, onAnswered: answered };
    const result = await generator(this.engine, this.tokens, order);
    sayFailures(result);
    const isJournal = (this.engine.environment['INGEST_ACK'] ?? 'journal') === 'journal';
    this.unsure += result.unsure + (isJournal ? 0 : totalOf(result.refused));
    const perDeviceMax = Math.ceil((4 * result.accepted) / this.tokens.length) + 10_000;
    this.#nextTs += perDeviceMax * stepMs;
    return result;
  }

  /** Waits until ClickHouse holds as many rows as were acknowledged. */
  async stored(): Promise<void> {
    const deadline = performance.now() + drainMsMax;
    const expected = this.#otherRows + this.accepted * this.#messageRecords * recordPoints;
    let rows = 0;
    const view = new WaitView('waiting until ClickHouse has all rows');
    try {
      while (performance.now() < deadline) {
        rows = await this.#count('SELECT count() FROM telemetry');
        if (rows >= expected) return;
        view.note(`${figure(rows)} of ${figure(expected)}`);
        await sleep(25);
      }
    } finally {
      view.end();
    }
    throw new Error(`ClickHouse holds ${rows} of ${expected} acknowledged rows after ${drainMsMax} ms`);
  }

  /** Waits until ClickHouse merges nothing for a while. Returns the merges that still run after the longest wait. */
  async mergesEnded(): Promise<number> {
    const deadline = performance.now() + mergesMsMax;
    let quietSince = performance.now();
    let merges = 0;
    while (performance.now() < deadline) {
      merges = await this.#count('SELECT count() FROM system.merges');
      if (merges > 0) quietSince = performance.now();
      else if (performance.now() - quietSince >= withoutMergesMs) break;
      await sleep(mergesAskedMs);
    }
    return merges;
  }

  /** True when ClickHouse has each acknowledged record once and whole, and of others only those that are unsure. */
  async verify(): Promise<boolean> {
    const [records, rows] = await Promise.all([
      this.#count("SELECT count() FROM telemetry FINAL WHERE key = 'temperature' AND num BETWEEN 21 AND 22"),
      this.#count('SELECT count() FROM telemetry FINAL'),
    ]);
    const [least, most] = [this.accepted, this.accepted + this.unsure].map((count) => count * this.#messageRecords);
    const whole = this.#otherRows + records * recordPoints;
    // Rows of other senders that were refused may be stored, too.
    return records >= least! && records <= most! && (rows === whole || (this.unsure > 0 && rows > whole));
  }

  /** Returns the bytes of active parts for each data point, before and after merging all parts to one. */
  async bytesPerPoint(): Promise<{ asIs: number; merged: number }> {
    const size = async () => {
      const sql = `SELECT sum(bytes_on_disk), sum(rows) FROM system.parts WHERE active AND database = currentDatabase() AND table = 'telemetry'`;
      const [[bytes, rows] = []] = await this.engine.clickhouse(sql);
      return Number(bytes) / Number(rows);
    };
    const asIs = await size();
    await this.#command('OPTIMIZE TABLE telemetry FINAL');
    return { asIs, merged: await size() };
  }

  async close(): Promise<void> {
    this.#unwatch();
    await this.engine.destroy();
  }

  async #count(sql: string): Promise<number> {
    const [[count] = []] = await this.engine.clickhouse(sql);
    return Number(count);
  }

  async #command(sql: string): Promise<void> {
    await this.engine.clickhouseCommand(sql);
  }
}
