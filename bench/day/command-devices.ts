/** Devices that reply to commands over MQTT, and connect again when they lose their connections. */
import mqtt, { type MqttClient } from 'mqtt';
import type { Device } from '../../test/harness/api.ts';
import { within } from '../deadline.ts';

const request = 'v1/devices/me/rpc/request/';
const response = 'v1/devices/me/rpc/response/';
const reconnectMs = 500;
const connectMsMax = 60_000;

export class CommandDevices {
  readonly #clients: MqttClient[] = [];
  /** Connections that were lost or refused. */
  lost = 0;

  /** Resolves when all are connected and subscribed. */
  static async connect(port: number, devices: Device[]): Promise<CommandDevices> {
    const all = new CommandDevices();
    await Promise.all(devices.map((device) => all.#connect(port, device)));
    return all;
  }

  async close(): Promise<void> {
    await Promise.all(this.#clients.map((client) => client.endAsync(true)));
  }

  async #connect(port: number, { token }: Device): Promise<void> {
    const client = mqtt.connect({
      host: '127.0.0.1',
      port,
      username: token,
      clientId: token,
      reconnectPeriod: reconnectMs,
    });
    this.#clients.push(client);
    // The client tries again by itself.
    client.on('error', () => {});
    client.on('close', () => {
      this.lost += 1;
    });
    client.on('message', (topic, payload) => {
      if (!topic.startsWith(request)) return;
      const { params } = JSON.parse(payload.toString()) as { params: number };
      client.publish(response + topic.slice(request.length), `{"n":${params}}`);
    });
    const connected = new Promise<void>((resolve) => client.once('connect', () => resolve()));
    await within(connected, connectMsMax, 'a device that takes commands was not connected over MQTT');
    const subscribed = client.subscribeAsync(`${request}+`);
    await within(subscribed, connectMsMax, 'the subscription of a device that takes commands was not acknowledged');
  }
}
