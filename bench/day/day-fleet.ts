/**
 * The clients of a day in small and their devices: telemetry over HTTP, MQTT and gateways, attributes, commands, and
 * reads as dashboards make them, each at a fixed rate in a stream of its own.
 */
import { hourMs } from '../../src/base/durations.ts';
import { type Device, eventually } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { requestBytes } from '../../test/harness/raw.ts';
import { createFleet } from '../engine-under-load.ts';
import { addedUp } from '../load/counts.ts';
import { dayOfSeconds } from '../load/day-of-seconds.ts';
import { runHttpLoad } from '../load/http/http.ts';
import { type MqttLoad, runMqttLoad } from '../load/mqtt/mqtt.ts';
import type { LoadResult } from '../load/processes.ts';
import { CallSeconds } from '../load/rest/call-seconds.ts';
import { type Call, makeCalls } from '../load/rest/calls.ts';
import { latestCall, outcomeOf, readFleet } from '../load/rest/latest-values.ts';
import type { BenchSettings } from '../settings.ts';
import { CommandDevices } from './command-devices.ts';

type DaySettings = BenchSettings['day'];

/** What each kind of client saw, by its name. */
export type Streams = Record<string, LoadResult>;

const host = '127.0.0.1';
const httpSockets = 64;
const mqttWindow = 4;
const restConnections = 16;
const readKeys = 10;
/** Every so many-th read of a dashboard is a day of history; the others are latest values. */
const historyEvery = 10;
const cutShare = 0.1;
const stepMs = 10;
const storedMsMax = 120_000;

interface Devices {
  http: Device[];
  mqtt: Device[];
  gateways: Device[];
  attributes: Device[];
  commands: Device[];
}

export class DayFleet {
  readonly #engine: Engine;
  readonly #day: DaySettings;
  readonly #devices: Devices;
  readonly #commandDevices: CommandDevices;
  readonly #commandOf: (n: number) => Call;
  readonly #readOf: (n: number) => Call;
  #nextTs = Date.now() - 6 * hourMs;
  /** Records of telemetry that were acknowledged, and those that were in flight when a connection broke. */
  #records = { accepted: 0, unsure: 0 };

  private constructor(
    engine: Engine,
    day: DaySettings,
    devices: Devices,
    commandDevices: CommandDevices,
    calls: { commandOf: (n: number) => Call; readOf: (n: number) => Call },
  ) {
    this.#engine = engine;
    this.#day = day;
    this.#devices = devices;
    this.#commandDevices = commandDevices;
    this.#commandOf = calls.commandOf;
    this.#readOf = calls.readOf;
  }

  /** Makes what the streams need: devices, stored values, open connections of the command devices. */
  static async make(engine: Engine, day: DaySettings): Promise<DayFleet> {
    const { api } = engine;
    const devices: Devices = {
      http: await createFleet(api, 'http', day.devices),
      mqtt: await createFleet(api, 'mqtt', day.devices),
      gateways: await createFleet(api, 'gateway', day.gateways, () => ({ additionalInfo: { gateway: true } })),
      attributes: await createFleet(api, 'attribute', day.devices),
      commands: await createFleet(api, 'command', day.commandDevices),
    };
    const key = await api.createKey();
    const read = await readFleet(engine, day.devices, readKeys);
    const historyCall = await dayOfSeconds(engine, key);
    const readOf = (n: number) => (n % historyEvery === 0 ? historyCall() : latestCall(read, key));
    const commandOf = (n: number) => commandCall(devices.commands[n % devices.commands.length]!, key, n);
    const commandDevices = await CommandDevices.connect(engine.mqttPort, devices.commands);
    const fleet = new DayFleet(engine, day, devices, commandDevices, { commandOf, readOf });
    // The first messages create the devices of the gateways.
    await fleet.#sendOfGateways(2, {});
    return fleet;
  }

  /** Connections of command devices that were lost; each was made again. */
  get commandConnectionsLost(): number {
    return this.#commandDevices.lost;
  }

  /** `onBegin` is called when the first messages leave; a tenth of the MQTT connections is cut some time after. */
  async run(seconds: number, cutAfterSeconds: number, onBegin: () => void): Promise<Streams> {
    const { httpRate, mqttRate, attributeRate, commandRate, readRate } = this.#day;
    const { http, mqtt, attributes } = this.#devices;
    const { port, mqttPort } = this.#engine;
    const common = { host, processes: 1, warmupSeconds: 0, seconds, firstTs: this.#nextTs, stepMs };
    const posts = { ...common, port, sockets: httpSockets };
    const clients = mqtt.map(({ token }) => ({ token, children: [] }));
    const faults = { reconnects: true, cutAtMs: cutAfterSeconds * 1000, cutShare };
    const publishes: MqttLoad = { ...common, port: mqttPort, clients, rate: mqttRate, window: mqttWindow, level: 4 };
    const [overHttp, overMqtt, overGateways, ofAttributes, ofCommands, ofReads] = await Promise.all([
      runHttpLoad({ ...posts, tokens: tokensOf(http), rate: httpRate }),
      runMqttLoad({ ...publishes, ...faults, isBeside: true, onConnected: onBegin }),
      this.#sendOfGateways(seconds, { reconnects: true, isBeside: true }),
      runHttpLoad({ ...posts, tokens: tokensOf(attributes), rate: attributeRate, kind: 'attributes', isBeside: true }),
      this.#call(commandRate, seconds, this.#commandOf),
      this.#call(readRate, seconds, this.#readOf),
    ]);
    for (const load of [overHttp, overMqtt]) this.#count(load, 1);
    return {
      'HTTP telemetry': overHttp,
      'MQTT telemetry': overMqtt,
      'gateway telemetry': overGateways,
      attributes: ofAttributes,
      commands: ofCommands,
      reads: ofReads,
    };
  }

  /** Waits until ClickHouse has every acknowledged record of telemetry; returns how many there are. */
  async stored(): Promise<{ least: number; most: number; found: number }> {
    const { accepted, unsure } = this.#records;
    const sql = "SELECT count() FROM telemetry FINAL WHERE key = 'temperature'";
    const count = async () => Number((await this.#engine.clickhouse(sql))[0]![0]);
    await eventually(async () => (await count()) >= accepted, storedMsMax, 500).catch(() => {});
    return { least: accepted, most: accepted + unsure, found: await count() };
  }

  close(): Promise<void> {
    return this.#commandDevices.close();
  }

  async #sendOfGateways(seconds: number, options: Partial<MqttLoad>): Promise<LoadResult> {
    const { children, gatewayRate: rate } = this.#day;
    const clients = this.#devices.gateways.map(({ token }, gateway) => {
      return { token, children: Array.from({ length: children }, (_, n) => `gateway-${gateway}-device-${n}`) };
    });
    const firstTs = this.#nextTs;
    this.#nextTs += hourMs;
    const order = { host, port: this.#engine.mqttPort, processes: 1, rate, window: 1, warmupSeconds: 0, seconds };
    const load = await runMqttLoad({ ...order, clients, firstTs, stepMs, level: 5, ...options });
    this.#count(load, children);
    return load;
  }

  #count({ accepted, unsure }: LoadResult, messageRecords: number): void {
    this.#records.accepted += accepted * messageRecords;
    this.#records.unsure += unsure * messageRecords;
  }

  async #call(rate: number, seconds: number, callOf: (n: number) => Call): Promise<LoadResult> {
    const view = new CallSeconds();
    const { port } = this.#engine;
    const seen = (outcome: string, microseconds: number) => view.add(outcome, microseconds);
    const { refused, unanswered } = await makeCalls({
      ...{ port, connections: restConnections, rate, warmupSeconds: 0, seconds, callOf, seen },
    });
    const load = view.result();
    return { ...load, refused: addedUp([load.refused, refused]), broken: unanswered, unsure: unanswered };
  }
}

function tokensOf(devices: Device[]): string[] {
  return devices.map(({ token }) => token);
}

function commandCall({ id }: Device, key: string, n: number): Call {
  const request = requestBytes({
    path: `/api/rpc/twoway/${id}`,
    headers: { 'x-authorization': `ApiKey ${key}`, 'content-type': 'application/json' },
    body: `{"method":"bench","params":${n}}`,
  });
  return { request, outcomeOf: (status, body) => outcomeOf(status, body, (text) => text === `{"n":${n}}`) };
}
