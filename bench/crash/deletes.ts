/**
 * Devices that are made, send, and lose their points again: by a delete of the device, of the series, or of a range. The
 * account knows which points must be gone and which must be readable.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Api, type Device } from '../../test/api.ts';
import type { Random } from '../../test/random.ts';
import { Connection, telemetryRequest } from './connection.ts';

export const doomedKey = 'doomed';
/** Values of one device begin at its number times this; the second half is for what is sent after the delete. */
const valuesOfDevice = 1_000;
const pointsBefore = 20;
const pointsAfter = 5;
const dayMs = 86_400_000;
const stepMs = 1_000;
const retryMs = 300;

type Expected = 'either' | 'readable' | 'gone';

export interface DoomedVerdict {
  devicesDeleted: number;
  seriesDeleted: number;
  rangesDeleted: number;
  /** Points that a delete took, by the account. */
  gone: number;
  /** Points that must be gone and are in the history, or are shown as latest value. */
  resurrected: number;
  resurrectedLatest: number;
  /** Points that were acknowledged, never deleted, and are not readable. */
  missing: number;
}

export interface DeletesOptions {
  api: Api;
  port: number;
  random: Random;
  /** Devices that go through it at once. */
  parallel: number;
  /** Time between two devices of one of these. */
  pauseMs: number;
}

export class Deletes {
  readonly #options: DeletesOptions;
  readonly #expected = new Map<number, Expected>();
  readonly #deleted = { device: 0, series: 0, range: 0 };
  readonly #loops: Promise<void>[];
  #api: Api;
  #devices = 0;
  #stopping = false;

  constructor(options: DeletesOptions) {
    this.#options = options;
    this.#api = options.api;
    this.#loops = Array.from({ length: options.parallel }, () => this.#loop());
  }

  /** Devices, series and ranges whose delete was answered. */
  get acknowledged(): number {
    const { device, series, range } = this.#deleted;
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
      const number = this.#devices;
      this.#devices += 1;
      await this.#oneDevice(number, connection);
      await sleep(random.between(0.5, 1.5) * pauseMs);
    }
    connection.close();
  }

  async #oneDevice(number: number, connection: Connection): Promise<void> {
    const { random } = this.#options;
    const how = random.pick(['device', 'series', 'range'] as const);
    // Half of the devices write to days long past, whose rows take another lane.
    const firstTs = Date.now() - 60_000 - (random.below(2) === 0 ? 0 : (30 + random.below(300)) * dayMs);
    const cut = how === 'range' ? pointsBefore / 2 : pointsBefore;
    const waitMs = random.between(0, 1_500);
    const device = await this.#insist(() => this.#api.createDevice(`doomed-${number}`));
    if (!device) return;
    const first = number * valuesOfDevice;
    const sent: number[] = [];
    for (let n = 0; n < pointsBefore; n += 1) {
      if (await this.#send(connection, device, first + n, firstTs + n * stepMs)) sent.push(n);
    }
    await sleep(waitMs);
    const within = sent.filter((n) => n < cut);
    let tries = 0;
    const done = await this.#insist(async () => {
      tries += 1;
      // From now on the delete may have been carried out, whatever its answer is.
      for (const n of within) this.#expected.set(first + n, 'either');
      const status = await this.#delete(how, device, firstTs - 500, firstTs + cut * stepMs - 500);
      if (status !== 200 && !(how === 'device' && status === 404)) throw new Error(`delete: ${status}`);
      return true;
    });
    if (!done) return;
    this.#deleted[how] += 1;
    for (const n of within) this.#expected.set(first + n, 'gone');
    // A try without an answer may still be under way, and takes what is sent now.
    if (how === 'device' || tries > 1) return;
    const after = first + valuesOfDevice / 2;
    for (const n of within.slice(0, pointsAfter)) {
      await this.#send(connection, device, after + n, firstTs + n * stepMs);
    }
  }

  async #send(connection: Connection, { token }: Device, value: number, ts: number): Promise<boolean> {
    if (this.#stopping || !(await connection.open())) return false;
    this.#expected.set(value, 'either');
    const body = `{"ts":${ts},"values":{"${doomedKey}":${value}}}`;
    if ((await connection.ask(telemetryRequest(token, body))) !== 200) return false;
    this.#expected.set(value, 'readable');
    return true;
  }

  async #delete(how: 'device' | 'series' | 'range', { id }: Device, startTs: number, endTs: number): Promise<number> {
    const range = how === 'range' ? `startTs=${startTs}&endTs=${endTs}` : 'deleteAllDataForKeys=true';
    const path =
      how === 'device'
        ? `/api/device/${id}`
        : `/api/plugins/telemetry/DEVICE/${id}/timeseries/delete?keys=${doomedKey}&${range}`;
    const response = await this.#api.send('DELETE', path);
    await response.arrayBuffer();
    return response.status;
  }

  /** Calls until it succeeds; undefined when the run ends first. */
  async #insist<T>(call: () => Promise<T>): Promise<T | undefined> {
    while (!this.#stopping) {
      try {
        return await call();
      } catch {
        // A sign-in does not outlive every setting of the clock.
        this.#api = new Api(this.#options.api.address);
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
    return {
      devicesDeleted: this.#deleted.device,
      seriesDeleted: this.#deleted.series,
      rangesDeleted: this.#deleted.range,
      gone,
      resurrected: history.filter(isGone).length,
      resurrectedLatest: latest.filter(isGone).length,
      missing,
    };
  }
}
