/**
 * MQTT connections whose worker is known, for rules that hold across workers. The engine must name its workers
 * (HTTP_TELL_WORKER), which only MQTT 5 can receive; the kernel chooses who accepts, so connections are opened until
 * one is accepted by that worker.
 */
import { connectMqtt, type Login, type MqttClient, type Transport } from './mqtt-client.ts';

const waitMsMax = 20_000;

/** Connects with MQTT 5 to this worker. Each attempt takes over the previous one. */
export async function connectMqttOn(worker: number, login: Transport & Login): Promise<MqttClient> {
  const deadline = performance.now() + waitMsMax;
  while (performance.now() < deadline) {
    const client = await connectMqtt(login);
    if (client.worker === undefined) throw new Error('the engine does not tell its workers: set HTTP_TELL_WORKER=true');
    if (client.worker === worker) return client;
    client.cut();
  }
  throw new Error(`no connection reached worker ${worker} in ${waitMsMax} ms`);
}
