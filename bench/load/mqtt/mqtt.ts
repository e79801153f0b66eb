/** The MQTT load: one order for each generator process, and the sum of their results. */
import { fileURLToPath } from 'node:url';
import { recordPoints } from '../moving-record.ts';
import { type LoadResult, runProcesses } from '../processes.ts';
import type { MqttProcessOrder } from './mqtt-process.ts';

type OrderOfProcess = Omit<
  MqttProcessOrder,
  'warmupMs' | 'durationMs' | 'messageDevices' | 'points' | 'drawn' | 'turns'
>;

export interface MqttLoad
  extends OrderOfProcess,
    Partial<Pick<MqttProcessOrder, 'messageDevices' | 'points' | 'drawn' | 'turns'>> {
  processes: number;
  warmupSeconds: number;
  seconds: number;
  onConnected?: (() => void) | undefined;
}

const entry = fileURLToPath(new URL('./mqtt-process.js', import.meta.url));

/** `rate`: messages/s in all; 0 = closed loop. */
export async function runMqttLoad(load: MqttLoad): Promise<LoadResult> {
  const orders = Array.from({ length: load.processes }, (_, n): MqttProcessOrder => {
    const { host, port, window, firstTs, stepMs, level } = load;
    const { messageDevices = 0, points = recordPoints, drawn = false, turns = 0 } = load;
    const clients = load.clients.filter((__, client) => client % load.processes === n);
    const rate = load.rate / load.processes;
    const [warmupMs, durationMs] = [load.warmupSeconds * 1000, load.seconds * 1000];
    const times = { rate, warmupMs, durationMs, firstTs, stepMs };
    return { host, port, clients, window, level, messageDevices, points, drawn, turns, ...times };
  });
  return (await runProcesses(entry, orders, load)).load;
}
