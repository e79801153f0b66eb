/** The HTTP load: one order for each generator process, and the sum of their results. */
import { fileURLToPath } from 'node:url';
import { recordPoints } from '../moving-record.ts';
import type { Place } from '../open-socket.ts';
import { type LoadResult, runProcesses } from '../processes.ts';
import type { HttpProcessResult, ProcessOrder } from './http-process.ts';
import type { MessageKind } from './requests.ts';

interface HttpLoad extends Place {
  /** What a balancer may choose a server by (localhost). */
  hostHeader?: string;
  tokens: string[];
  sockets: number;
  processes: number;
  /** Requests/s in all; 0 = closed loop. */
  rate: number;
  /** Time before the warm-up in which the rate grows from 0. */
  rampSeconds?: number;
  warmupSeconds: number;
  seconds: number;
  firstTs: number;
  stepMs: number;
  kind?: MessageKind | 'lines';
  points?: number;
  /** Devices in each message of lines (1). */
  messageDevices?: number;
  drawn?: boolean;
  onConnected?: (() => void | Promise<void>) | undefined;
  onAnswered?: ((accepted: number) => Promise<void>) | undefined;
  isBeside?: boolean;
  giveUpSeconds?: number | undefined;
}

export interface HttpLoadResult extends LoadResult {
  /** `ts` of the last request of each device, by token; empty when devices are drawn. */
  lastTs: Map<string, number>;
}

const entry = fileURLToPath(new URL('./http-process.js', import.meta.url));

export async function runHttpLoad(load: HttpLoad): Promise<HttpLoadResult> {
  const orders = Array.from({ length: load.processes }, (_, n) => orderFor(load, n));
  const { results, load: seen } = await runProcesses<HttpProcessResult>(entry, orders, {
    rate: load.rate,
    leadSeconds: (load.rampSeconds ?? 0) + load.warmupSeconds,
    rampSeconds: load.rampSeconds ?? 0,
    seconds: load.seconds,
    giveUpSeconds: load.giveUpSeconds,
    onConnected: load.onConnected,
    onAnswered: load.onAnswered,
    isBeside: load.isBeside,
  });
  return { ...seen, lastTs: new Map(results.flatMap((result) => result.lastTs)) };
}

function orderFor(load: HttpLoad, n: number): ProcessOrder {
  const share = (amount: number) => Math.ceil(amount / load.processes);
  const { messageDevices = 1 } = load;
  const tokens = load.tokens.filter((_, device) => device % load.processes === n);
  return {
    host: load.host,
    port: load.port,
    tls: load.tls,
    hostHeader: load.hostHeader ?? 'localhost',
    tokens,
    sockets: Math.min(share(load.sockets), Math.ceil(tokens.length / messageDevices)),
    messageDevices,
    rate: load.rate / load.processes,
    rampMs: (load.rampSeconds ?? 0) * 1000,
    warmupMs: load.warmupSeconds * 1000,
    durationMs: load.seconds * 1000,
    firstTs: load.firstTs,
    stepMs: load.stepMs,
    kind: load.kind ?? 'telemetry',
    points: load.points ?? recordPoints,
    drawn: load.drawn ?? false,
  };
}
