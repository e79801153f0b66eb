/** Devices that reach hosts through a balancer, and send points that can be counted. */
import { setTimeout as sleep } from 'node:timers/promises';
import { connectAsync, type MqttClient as LibraryClient } from 'mqtt';
import { type Device, eventually } from './api.ts';
import type { Engine } from './engine.ts';
import { RawConnection } from './raw.ts';

const firstTs = Date.now() - 3_600_000;

export const telemetryPath = ({ token }: Device) => `/api/v1/${token}/telemetry`;

function point(n: number): string {
  return `{"ts":${firstTs + n},"values":{"n":${n}}}`;
}

/** Resolves when the points 0 to `count` - 1 of the device are stored, and no others. */
export async function hasStored(host: Engine, device: Device, count: number): Promise<void> {
  await eventually(async () => {
    const range = { startTs: firstTs, endTs: firstTs + count, limit: 100_000 };
    const { n = [] } = await host.api.readSeries(device.id, ['n'], range);
    return n.length === count && n.every(({ value }, at) => value === at);
  }, 30_000);
}

/** A device that keeps its HTTP connection, and opens another one when the balancer has closed it. */
export class HttpDevice {
  readonly device: Device;
  readonly #port: number;
  #connection: RawConnection | undefined;

  constructor(device: Device, port: number) {
    this.device = device;
    this.#port = port;
  }

  /** Returns the status, with the body of a refusal; fails when the connection ends without an answer. */
  async send(n: number): Promise<string> {
    if (this.#connection?.closed !== false) this.#connection = await RawConnection.open(this.#port);
    const request = { path: telemetryPath(this.device), body: point(n) };
    const { status, headers, body: answer } = await this.#connection.ask(request, 20_000);
    if (headers.get('connection')?.toLowerCase() === 'close') this.close();
    return status === 200 ? '200' : `${status} ${answer}`;
  }

  close(): void {
    this.#connection?.close();
    this.#connection = undefined;
  }
}

const commands = 'v1/devices/me/rpc/request/';

/** A device with a usual MQTT library, which connects again by itself. */
export class MqttDevice {
  readonly device: Device;
  readonly #client: LibraryClient;
  connects = 1;
  /** The number of times that the library has tried to connect again. */
  attempts = 0;
  acknowledged = 0;
  /** The parameters of the commands that came. */
  readonly executed: unknown[] = [];

  private constructor(device: Device, client: LibraryClient) {
    this.device = device;
    this.#client = client;
    client.on('connect', () => {
      this.connects += 1;
    });
    client.on('reconnect', () => {
      this.attempts += 1;
    });
    // The connection of a write may end during the write.
    client.on('error', () => {});
  }

  static async connect(device: Device, url: string, protocolVersion: 4 | 5): Promise<MqttDevice> {
    const options = { username: device.token, protocolVersion, reconnectPeriod: 200 };
    return new MqttDevice(device, await connectAsync(url, options));
  }

  get isConnected(): boolean {
    return this.#client.connected;
  }

  /** Executes commands, and replies with their parameters. The library subscribes again on each connection. */
  async takeCommands(): Promise<void> {
    this.#client.on('message', (topic, payload) => {
      if (!topic.startsWith(commands)) return;
      const { params } = JSON.parse(payload.toString()) as { params: unknown };
      this.executed.push(params);
      this.#client.publish(topic.replace('request', 'response'), JSON.stringify(params), { qos: 1 });
    });
    await this.#client.subscribeAsync(`${commands}+`, { qos: 0 });
  }

  /** A message that waits for its PUBACK when the connection ends is sent again by the library. */
  async publishWhile(isRunning: () => boolean, pauseMs: number): Promise<void> {
    while (isRunning()) {
      await this.#client.publishAsync('v1/devices/me/telemetry', point(this.acknowledged), { qos: 1 });
      this.acknowledged += 1;
      await sleep(pauseMs);
    }
  }

  async end(): Promise<void> {
    await this.#client.endAsync(true);
  }
}
