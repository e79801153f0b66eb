/**
 * Servers that take part in a comparison: each is started, takes the same load, says what one message cost it and
 * whether everything that it acknowledged was found. `quick` runs contenders.
 */
import { cpuMsOf } from './cpu.ts';
import type { EngineUnderLoad, LoadOrder } from './engine-under-load.ts';
import type { LoadResult } from './load/processes.ts';
import type { Peer } from './peers/start.ts';

const stepMs = 100;

type TurnTimes = Pick<LoadOrder, 'rate' | 'seconds' | 'warmupSeconds'>;

export interface Turn {
  /** Of Millrace, only messages that were found in ClickHouse, by the time until the last one was there. */
  messagesPerSecond: number;
  /** CPU time for each message, by process; undefined = the server runs elsewhere. */
  cpuMicroseconds: Record<string, number> | undefined;
  load: LoadResult;
  /** Every acknowledged record was found, once; undefined = the server stores nothing. */
  verified: boolean | undefined;
}

export interface Contender {
  name: string;
  run(times: TurnTimes): Promise<Turn>;
  close(): Promise<void>;
}

/** A server that acknowledges and stores nothing. */
export function peerContender(peer: Peer, offer: (order: LoadOrder) => Promise<LoadResult>): Contender {
  return {
    name: peer.name,
    run: async (times) => {
      const cpuBefore = cpuMsOf(peer.pid);
      const load = await offer({ ...times, firstTs: Date.now(), stepMs });
      const server = ((cpuMsOf(peer.pid) - cpuBefore) * 1000) / load.accepted;
      return { messagesPerSecond: load.requestsPerSecond, cpuMicroseconds: { server }, load, verified: undefined };
    },
    close: async () => peer.close(),
  };
}

export function engineContender(name: string, engine: EngineUnderLoad): Contender {
  return {
    name,
    run: async ({ rate, seconds, warmupSeconds }) => {
      const load = await engine.load(rate, seconds, warmupSeconds);
      const { storedRequestsPerSecond, cpuMicrosecondsPerRequest: cpuMicroseconds, verified } = load;
      return { messagesPerSecond: storedRequestsPerSecond, cpuMicroseconds, load, verified };
    },
    close: () => engine.close(),
  };
}
