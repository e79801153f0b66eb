/**
 * What must hold beside any attack: the same workers, other clients served in time, every acknowledged message of
 * theirs stored once, connections closed and memory bounded. Used by `fuzz/mqtt.ts` and `fuzz/http.ts`.
 */
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { connectAsync } from 'mqtt';
import { type Device, eventually } from '../test/harness/api.ts';
import type { Engine } from '../test/harness/engine.ts';

const residentGrowthBytesMax = 200 * 1024 * 1024;
const pauseMs = 50;
const acknowledgedMsMax = 30_000;
/** On a busy machine a neighbour may wait so many times longer than without the attack. */
const servedMsMaxFactor = 10;
const quietMessages = 12;

/** Sends one message and resolves when it is acknowledged. */
type Send = (body: string) => Promise<void>;

interface Neighbour {
  device: Device;
  send: Send;
  close(): Promise<void>;
  acknowledged: number;
}

export class Watch {
  readonly findings: string[] = [];
  /** The longest that a neighbour waited for an acknowledgement. */
  servedMs = 0;
  readonly #engine: Engine;
  readonly #servedMsMax: number;
  readonly #neighbours: Neighbour[];
  readonly #pids: string;
  readonly #firstTs = Date.now() - 3_600_000;
  #connections = 0;
  /** Before the attack. */
  #quietMs = 0;
  #residentBytes = 0;
  #going = true;
  #loops: Promise<void>[] = [];

  private constructor(engine: Engine, servedMsMax: number, neighbours: Neighbour[]) {
    this.#engine = engine;
    this.#servedMsMax = servedMsMax;
    this.#neighbours = neighbours;
    this.#pids = pidsOf(engine);
  }

  /** Neighbours that have sent some messages before the attack begins. */
  static async start(engine: Engine, servedMsMax: number): Promise<Watch> {
    const device = (name: string) => engine.api.createDevice(`neighbour-${name}`);
    const watch = new Watch(engine, servedMsMax, [
      httpNeighbour(engine, await device('http')),
      await mqttNeighbour(engine, await device('mqtt-4'), 4),
      await mqttNeighbour(engine, await device('mqtt-5'), 5),
    ]);
    await watch.#begin();
    return watch;
  }

  async #begin(): Promise<void> {
    for (let n = 0; n < quietMessages; n += 1) {
      const each = await Promise.all(this.#neighbours.map((neighbour) => this.#beat(neighbour)));
      // The first messages warm caches.
      if (n > 1) this.#quietMs = Math.max(this.#quietMs, ...each);
    }
    this.#connections = await connectionsOf(this.#engine);
    this.#loops = this.#neighbours.map((neighbour) => this.#serve(neighbour));
  }

  /** Call when caches and code are warm: memory is measured from here. */
  warm(): void {
    this.#residentBytes = residentBytes(this.#engine);
  }

  /** Ends the neighbours and adds what is wrong now. */
  async stop(): Promise<string[]> {
    this.#going = false;
    await Promise.all(this.#loops);
    const { findings } = this;
    const servedMsMax = Math.max(this.#servedMsMax, servedMsMaxFactor * this.#quietMs);
    if (this.servedMs > servedMsMax) {
      findings.push(
        `a neighbour waited ${this.servedMs.toFixed(0)} ms, before the attack ${this.#quietMs.toFixed(0)} ms`,
      );
    }
    if (pidsOf(this.#engine) !== this.#pids) findings.push(`a worker ended:\n${this.#engine.tail()}`);
    const isBack = async () => (await connectionsOf(this.#engine)) === this.#connections;
    await eventually(isBack).catch(() => findings.push('connections of the attack are still counted after 10 s'));
    const grown = residentBytes(this.#engine) - this.#residentBytes;
    if (this.#residentBytes > 0 && grown > residentGrowthBytesMax) findings.push(`workers grew by ${grown} bytes`);
    for (const { device, acknowledged } of this.#neighbours) {
      const expected = String(acknowledged);
      let stored = '';
      const isStored = async () => (stored = await this.#stored(device)) === expected;
      await eventually(isStored, 20_000).catch(() =>
        findings.push(`${expected} messages of a neighbour are acknowledged, ${stored} are stored`),
      );
    }
    await Promise.all(this.#neighbours.map((neighbour) => neighbour.close()));
    return findings;
  }

  get acknowledged(): number {
    return this.#neighbours.reduce((sum, { acknowledged }) => sum + acknowledged, 0);
  }

  async #serve(neighbour: Neighbour): Promise<void> {
    while (this.#going) {
      const ms = await this.#beat(neighbour).catch((error: unknown) => {
        this.findings.push(`a neighbour lost its acknowledgement: ${error}`);
      });
      if (ms === undefined) return;
      this.servedMs = Math.max(this.servedMs, ms);
      await sleep(pauseMs);
    }
  }

  /** One message; returns the milliseconds until its acknowledgement. */
  async #beat(neighbour: Neighbour): Promise<number> {
    const startedAt = performance.now();
    await within(
      neighbour.send(`{"ts":${this.#firstTs + neighbour.acknowledged},"values":{"beat":1}}`),
      acknowledgedMsMax,
    );
    neighbour.acknowledged += 1;
    return performance.now() - startedAt;
  }

  async #stored({ id }: Device): Promise<string> {
    const range = { startTs: this.#firstTs, endTs: this.#firstTs + 3_600_000, limit: 100_000 };
    return String((await this.#engine.api.readSeries(id, ['beat'], range))['beat']?.length ?? 0);
  }
}

async function within(work: Promise<void>, waitMsMax: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no acknowledgement within ${waitMsMax} ms`)), waitMsMax);
  });
  await Promise.race([work, late]).finally(() => clearTimeout(timer));
}

function httpNeighbour(engine: Engine, device: Device): Neighbour {
  const send = async (body: string) => {
    const status = await engine.api.postTelemetry(device.token, body);
    if (status !== 200) throw new Error(`status ${status}`);
  };
  return { device, acknowledged: 0, send, close: async () => {} };
}

async function mqttNeighbour(engine: Engine, device: Device, protocolVersion: 4 | 5): Promise<Neighbour> {
  const client = await connectAsync(`mqtt://127.0.0.1:${engine.mqttPort}`, {
    username: device.token,
    protocolVersion,
    reconnectPeriod: 0,
  });
  const send = async (body: string) => {
    await client.publishAsync('v1/devices/me/telemetry', body, { qos: 1 });
  };
  return { device, acknowledged: 0, send, close: () => client.endAsync() };
}

function pidsOf(engine: Engine): string {
  return engine.workers().sort().join();
}

function residentBytes(engine: Engine): number {
  const kilobytes = (pid: number) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
  return engine.workers().reduce((sum, pid) => sum + kilobytes(pid) * 1_024, 0);
}

/** MQTT connections of all workers. */
async function connectionsOf(engine: Engine): Promise<number> {
  const lines = (await engine.api.metrics()).split('\n').filter((line) => /^\w*mqtt_connections(\{|\s)/.test(line));
  if (lines.length === 0) throw new Error('there is no metric of MQTT connections');
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}
