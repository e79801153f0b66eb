/**
 * Servers that take part in a comparison: each is started, takes the same load, says what one message cost it and
 * whether everything that it acknowledged was found. `quick` and `peers` run contenders.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMsOf, cpuMsOfFamily } from './cpu.ts';
import type { EngineUnderLoad, LoadOrder } from './engine-under-load.ts';
import { recordPoints } from './load/moving-record.ts';
import { type LoadResult, sayFailures } from './load/processes.ts';
import type { Peer } from './peers/start.ts';
import type { StorePeer } from './peers/stores.ts';
import { type FlagValues, targetOrder } from './target/order.ts';
import { TargetRun } from './target/run.ts';
import type { ServerFacts } from './target/server.ts';

const stepMs = 100;
const storedMsMax = 60_000;

type TurnTimes = Pick<LoadOrder, 'rate' | 'seconds' | 'warmupSeconds'>;

export interface Turn {
  /** For Millrace the messages that were found in ClickHouse, divided by the time until the last one was there. */
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
  /** Present for a server that stores and whose disk can be seen. */
  bytesPerPoint?(): Promise<number>;
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
      sayFailures(load);
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
    bytesPerPoint: async () => (await engine.bytesPerPoint()).merged,
    close: () => engine.close(),
  };
}

/** A database. Its load takes another range of `ts` each time; a sender is a device, or a block of devices. */
export function storeContender(
  store: StorePeer,
  { senders, messageRecords }: { senders: number; messageRecords: number },
  offer: (order: LoadOrder) => Promise<LoadResult>,
): Contender {
  let firstTs = Date.now() - 6 * 3_600_000;
  let accepted = 0;
  return {
    name: store.name,
    run: async (times) => {
      const cpuBefore = cpuMsOfFamily(store.pid);
      const load = await offer({ ...times, firstTs, stepMs });
      const server = ((cpuMsOfFamily(store.pid) - cpuBefore) * 1000) / load.accepted;
      accepted += load.accepted * messageRecords;
      const perSenderMax = Math.ceil((4 * load.accepted) / senders) + 1_000;
      firstTs += perSenderMax * stepMs;
      const verified = (await foundBy(store, accepted)) === accepted;
      return { messagesPerSecond: load.requestsPerSecond, cpuMicroseconds: { server }, load, verified };
    },
    bytesPerPoint: async () => (await store.bytes()) / (accepted * recordPoints),
    close: () => store.close(),
  };
}

/** A platform that runs already, by the flags of `--target`: its processes and its disk cannot be seen. */
export async function targetContender(
  name: string,
  flags: FlagValues,
): Promise<{ contender: Contender; server: ServerFacts }> {
  const run = new TargetRun(targetOrder('http', flags));
  try {
    await run.prepare();
  } catch (error) {
    await run.close();
    throw error;
  }
  const contender: Contender = {
    name,
    run: async ({ rate, seconds, warmupSeconds }) => {
      const load = await run.offer({ rate, seconds, warmupSeconds, rampSeconds: 0 });
      const { isWhole: verified } = await run.verify();
      return { messagesPerSecond: load.requestsPerSecond, cpuMicroseconds: undefined, load, verified };
    },
    close: async () => {
      await run.close();
    },
  };
  return { contender, server: run.server };
}

/** Waits until a reader finds so many records; returns how many there are. */
async function foundBy(store: StorePeer, records: number): Promise<number> {
  const deadline = performance.now() + storedMsMax;
  for (;;) {
    const found = await store.count();
    if (found >= records || performance.now() > deadline) return found;
    await sleep(500);
  }
}
