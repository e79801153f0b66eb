/** The MQTT load: one order for each generator process, and the sum of their results. */
import { fileURLToPath } from 'node:url';
import { type LoadResult, runProcesses } from '../processes.ts';
import type { Level } from './mqtt-packets.ts';
import type { MqttClient, MqttProcessOrder, MqttProcessResult } from './mqtt-process.ts';

export interface MqttLoad {
  host: string;
  port: number;
  clients: MqttClient[];
  processes: number;
  window: number;
  /** Messages/s in all; 0 = closed loop. */
  rate: number;
  warmupSeconds: number;
  seconds: number;
  firstTs: number;
  stepMs: number;
  level: Level;
}

export interface MqttLoadResult extends LoadResult {
  /** Acknowledged between two moments (Unix time), to a tenth of a second. */
  between(fromMs: number, toMs: number): number;
}

const entry = fileURLToPath(new URL('./mqtt-process.js', import.meta.url));
const tenthMs = 100;

export async function runMqttLoad(load: MqttLoad): Promise<MqttLoadResult> {
  const orders = Array.from({ length: load.processes }, (_, n): MqttProcessOrder => {
    const { host, port, window, firstTs, stepMs, level } = load;
    const clients = load.clients.filter((_, client) => client % load.processes === n);
    const rate = load.rate / load.processes;
    const [warmupMs, durationMs] = [load.warmupSeconds * 1000, load.seconds * 1000];
    return { host, port, clients, window, rate, warmupMs, durationMs, firstTs, stepMs, level };
  });
  const { results, load: seen } = await runProcesses<MqttProcessResult>(entry, orders, load.rate);
  const between = (fromMs: number, toMs: number): number => {
    let count = 0;
    for (const { tenths, startedAtMs } of results) {
      const [from, to] = [fromMs, toMs].map((at) => Math.round((at - startedAtMs) / tenthMs));
      for (let tenth = Math.max(0, from!); tenth < to!; tenth += 1) count += tenths[tenth] ?? 0;
    }
    return count;
  };
  return { ...seen, between };
}
