/** The MQTT load: one order for each generator process, and the sum of their results. */
import { fileURLToPath } from 'node:url';
import { recordPoints } from '../moving-record.ts';
import { type LoadResult, runProcesses } from '../processes.ts';
import type { MqttProcessOrder } from './mqtt-process.ts';

type Chosen = 'messageDevices' | 'points' | 'drawn' | 'turns' | 'qos' | 'reconnects' | 'cutAtMs' | 'cutShare';

export interface MqttLoad
  extends Omit<MqttProcessOrder, 'warmupMs' | 'durationMs' | 'rampMs' | 'connackMs' | Chosen>,
    Partial<Pick<MqttProcessOrder, Chosen>> {
  processes: number;
  rampSeconds?: number;
  warmupSeconds: number;
  seconds: number;
  onConnected?: (() => void | Promise<void>) | undefined;
  onAnswered?: ((accepted: number) => Promise<void>) | undefined;
  isBeside?: boolean;
  giveUpSeconds?: number | undefined;
}

/** How long a CONNECT waits for its answer in a load that is not given up. */
const connackSecondsMax = 60;

const entry = fileURLToPath(new URL('./mqtt-process.js', import.meta.url));

/** `rate`: messages/s in all; 0 = closed loop. */
export async function runMqttLoad(load: MqttLoad): Promise<LoadResult> {
  const { rampSeconds = 0, warmupSeconds, seconds } = load;
  const orders = Array.from({ length: load.processes }, (_, n): MqttProcessOrder => {
    const { host, port, tls, window, firstTs, stepMs, level } = load;
    const { messageDevices = 0, points = recordPoints, drawn = false, turns = 0, qos = 1 } = load;
    const { reconnects = false, cutAtMs = 0, cutShare = 0 } = load;
    const clients = load.clients.filter((__, client) => client % load.processes === n);
    const rate = load.rate / load.processes;
    const [rampMs, warmupMs, durationMs] = [rampSeconds * 1000, warmupSeconds * 1000, seconds * 1000];
    const times = { rate, rampMs, warmupMs, durationMs, firstTs, stepMs };
    const connackMs = 1000 * (load.giveUpSeconds ?? connackSecondsMax);
    const faults = { connackMs, reconnects, cutAtMs, cutShare };
    return { host, port, tls, clients, window, level, qos, messageDevices, points, drawn, turns, ...times, ...faults };
  });
  const { rate, giveUpSeconds, onConnected, onAnswered, isBeside } = load;
  const leadSeconds = rampSeconds + warmupSeconds;
  const times = { rate, leadSeconds, rampSeconds, seconds: load.turns ? 0 : seconds, giveUpSeconds };
  return (await runProcesses(entry, orders, { ...times, onConnected, onAnswered, isBeside })).load;
}
