/**
 * Devices that send and lose points again: first keys and ranges of keys, over and over, then the device itself. The
 * account knows which points must be gone and which must be readable. A delete counts when it was answered: 200 says
 * that no read shows a deleted point, 202 that the delete is kept and will be carried out.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { dayMs } from '../../src/base/durations.ts';
import { Api } from '../../test/harness/api.ts';
import type { Random } from '../../test/harness/random.ts';
import { Connection, telemetryRequest } from './connection.ts';

export const doomedKeyPrefix = 'doomed-';
const pointsBefore = 20;
const pointsAfter = 5;
const roundsMax = 6;
const stepMs = 1_000;
const retryMs = 200;
const waitMsMax = 500;

type Expected = 'either' | 'readable' | 'gone';
type Answer = 'done' | 'recorded' | 'unknown';

export interface DoomedVerdict {
  devicesDeleted: number;
  /** Deletes of all points of a key, and of a range of them. */
  seriesDeleted: number;
  rangesDeleted: number;
  /** Of the latter two: answered 202. */
  recorded: number;
  /** Deletes without an answer, or with an answer that is not one of a delete; each was sent again. */
  unanswered: number;
  /** Points that a delete took, by the account. */
  gone: number;
  /** Points that must be gone and are in the history, or are shown as latest value. */
  resurrected: number;
  resurrectedLatest: number;
  /** Deleted points that a read showed after the answer 200 to their delete, and reads that looked for some. */
  shownAfterDelete: number;
  readsAfterDelete: number;
  /** Points that were acknowledged, never deleted, and are not readable. */
  missing: number;
}

interface DeletesOptions {
  api: Api;
  port: number;
  random: Random;
  /** Devices that go through it at once. */
  parallel: number;
  /** Time between two deletes of one of these. */
  pauseMs: number;
}

interface Doomed {
  id: string;
  token: string;
}

export class Deletes {
  readonly #options: DeletesOptions;
  /** Expected points by value: every point has a unique one. */
  readonly #expected = new Map<number, Expected>();
  readonly #counts = { device: 0, series: 0, range: 0, recorded: 0, unanswered: 0, shown: 0, reads: 0 };
  readonly #loops: Promise<void>[];
  #api: Api;
  #devices = 0;
  #keys = 0;
  #values = 0;
  #stopping = false;

  constructor(options: DeletesOptions) {
    this.#options = options;
    this.#api = options.api;
    this.#loops = Array.from({ length: options.parallel }, () => this.#loop());
  }

  /** Devices, series and ranges whose delete was answered. */
  get acknowledged(): number {
    const { device, series, range } = this.#counts;
    return device + series + range;
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await Promise.all(this.#loops);
  }

  async #loop(): Promise<void> {
    const { port, pauseMs, random } = this.#options;
    const connection = new Connection(port);
    while (!this.#stopping) {
      await this.#oneDevice(connection);
      await sleep(random.between(0.5, 1.5) * pauseMs);
    }
    connection.close();
  }

  async #oneDevice(connection: Connection): Promise<void> {
    const { random, pauseMs } = this.#options;
    const device = await this.#insist(() => this.#create());
    if (!device) return;
    const values: number[] = [];
    const rounds = 1 + random.below(roundsMax);
    for (let n = 0; n < rounds && !this.#stopping; n += 1) {
      if (!(await this.#oneKey(connection, device, values))) break;
      await sleep(random.between(0.5, 1.5) * pauseMs);
    }
    const isDeleted = await this.#insist(async () => {
      this.#maybeGone(values);
      const status = await this.#delete(`/api/device/${device.id}`);
      if (status !== 200 && status !== 404) throw new Error(`delete: ${status}`);
      return true;
    });
    if (!isDeleted) return;
    this.#counts.device += 1;
    // Includes points that were sent without an answer: late ones are deleted with the device.
    for (const value of values) if (this.#expected.has(value)) this.#expected.set(value, 'gone');
  }

  /** A try without an answer may still run, and delete points that are sent now. False: the device sends no more. */
  async #oneKey(connection: Connection, device: Doomed, values: number[]): Promise<boolean> {
    const { random } = this.#options;
    const how = random.pick(['series', 'range'] as const);
    // Half of the keys have points of long past days, whose rows use the late lane.
    const firstTs = Date.now() - 60_000 - (random.below(2) === 0 ? 0 : (30 + random.below(300)) * dayMs);
    const cut = how === 'range' ? pointsBefore / 2 : pointsBefore;
    const waitMs = random.between(0, waitMsMax);
    const key = `${doomedKeyPrefix}${this.#keys}`;
    this.#keys += 1;
    const first = this.#values;
    this.#values += pointsBefore + pointsAfter;
    for (let n = 0; n < pointsBefore; n += 1) values.push(first + n);
    const half = pointsBefore / 2;
    await this.#send(connection, device, key, first, firstTs, half);
    await this.#send(connection, device, key, first + half, firstTs + half * stepMs, half);
    await sleep(waitMs);
    const within = Array.from({ length: cut }, (_, n) => first + n);
    const acknowledged = within.filter((value) => this.#expected.get(value) === 'readable');
    const range = how === 'range' ? `startTs=${firstTs - 500}&endTs=${firstTs + cut * stepMs - 500}` : allData;
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=${key}&${range}`;
    let tries = 0;
    const answer = await this.#insist(async (): Promise<Answer> => {
      tries += 1;
      this.#maybeGone(acknowledged);
      const status = await this.#delete(path);
      if (status !== 200 && status !== 202) throw new Error(`delete: ${status}`);
      return status === 200 ? 'done' : 'recorded';
    });
    if (!answer) return false;
    this.#counts[how] += 1;
    if (answer === 'recorded') this.#counts.recorded += 1;
    for (const value of acknowledged) this.#expected.set(value, 'gone');
    if (answer === 'done') await this.#look(device, key, firstTs, new Set(acknowledged));
    if (tries > 1) return false;
    const after = first + pointsBefore;
    for (let n = 0; n < pointsAfter; n += 1) values.push(after + n);
    await this.#send(connection, device, key, after, firstTs, pointsAfter);
    return !this.#stopping;
  }

  /** Marks values whose delete may have been carried out, with any answer. */
  #maybeGone(values: readonly number[]): void {
    for (const value of values) if (this.#expected.get(value) === 'readable') this.#expected.set(value, 'either');
  }

  /** Sends one message with the given number of points. */
  async #send(connection: Connection, { token }: Doomed, key: string, first: number, ts: number, count: number) {
    if (this.#stopping || !(await connection.open())) return;
    const values = Array.from({ length: count }, (_, n) => first + n);
    for (const value of values) this.#expected.set(value, 'either');
    const records = values.map((value, n) => `{"ts":${ts + n * stepMs},"values":{"${key}":${value}}}`);
    if ((await connection.ask(telemetryRequest(token, `[${records.join(',')}]`))) !== 200) return;
    for (const value of values) this.#expected.set(value, 'readable');
  }

  async #create(): Promise<Doomed> {
    const token = `doomed-token-${this.#devices}`;
    const name = `doomed-${this.#devices}`;
    this.#devices += 1;
    const response = await this.#api.send('POST', `/api/device?accessToken=${token}`, { name });
    const text = await response.text();
    if (response.status !== 200) throw await this.#refused(response.status, `create device: ${text}`);
    const { id } = JSON.parse(text) as { id: { id: string } };
    return { id: id.id, token };
  }

  /** Status of the answer. */
  async #delete(path: string): Promise<number> {
    const response = await this.#api.send('DELETE', path);
    const text = await response.text();
    if (response.status === 401) throw await this.#refused(401, text);
    return response.status;
  }

  /** Checks that no read shows a point whose delete was answered with 200. A read that fails proves nothing. */
  async #look({ id }: Doomed, key: string, firstTs: number, gone: ReadonlySet<number>): Promise<void> {
    try {
      const range = { startTs: firstTs - 1, endTs: firstTs + (pointsBefore + 1) * stepMs };
      const points = (await this.#api.readSeries(id, [key], range))[key] ?? [];
      const latest = (await this.#api.readLatest(id, [key]))[key] ?? [];
      this.#counts.reads += 1;
      // A key without a latest value is answered with null, which is no point: Number(null) would be the first value.
      const shown = [...points, ...latest].filter(({ value }) => value !== null && gone.has(Number(value)));
      this.#counts.shown += shown.length;
    } catch {
      // The engine is in the middle of a fault.
    }
  }

  /** A sign-in does not outlive every setting of the clock. */
  async #refused(status: number, text: string): Promise<Error> {
    if (status === 401) this.#api = new Api(this.#options.api.address);
    return new Error(`${status} ${text}`);
  }

  /** Calls until it succeeds; undefined when the run ends first. */
  async #insist<T>(call: () => Promise<T>): Promise<T | undefined> {
    while (!this.#stopping) {
      try {
        return await call();
      } catch {
        this.#counts.unanswered += 1;
        await sleep(retryMs);
      }
    }
    return undefined;
  }

  /** `history` and `latest`: the values of every doomed point in the store. */
  judge(history: number[], latest: number[]): DoomedVerdict {
    const stored = new Set(history);
    const isGone = (value: number) => this.#expected.get(value) === 'gone';
    let missing = 0;
    let gone = 0;
    for (const [value, expected] of this.#expected) {
      if (expected === 'gone') gone += 1;
      if (expected === 'readable' && !stored.has(value)) missing += 1;
    }
    const { device, series, range, recorded, unanswered, shown, reads } = this.#counts;
    return {
      devicesDeleted: device,
      seriesDeleted: series,
      rangesDeleted: range,
      recorded,
      unanswered,
      gone,
      resurrected: history.filter(isGone).length,
      resurrectedLatest: latest.filter(isGone).length,
      shownAfterDelete: shown,
      readsAfterDelete: reads,
      missing,
    };
  }
}

const allData = 'deleteAllDataForKeys=true';
