/**
 * Round trips of commands: REST on one worker → the poll of a device on the other → its reply → the caller. Offered at
 * a fixed rate; a latency counts from the moment at which the call was due, so a late one is not hidden. A connection
 * that is refused or breaks is counted and made again.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Device } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import type { RawConnection, RawRequest, RawResponse } from '../../test/harness/raw.ts';
import { connectToEachWorker, restOn } from '../../test/harness/workers.ts';
import { createFleet } from '../engine-under-load.ts';
import { totalOf } from '../load/counts.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import { WaitView } from '../load/wait-view.ts';
import { figure, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const p99MsMax = 10;
/** After this time the code of all four processes is compiled. */
const warmupSeconds = 10;
const operatorConnections = 32;
const endMsMax = 15_000;
const connectTriesMax = 20;
const retryMs = 500;
const pollMsMax = 20_000;

export async function runRpc(settings: BenchSettings): Promise<boolean> {
  const { devices: count, rate, seconds } = settings.rpc;
  const engine = await startEngine({ workers: 2, env: { LOG_LEVEL: 'warn', HTTP_TELL_WORKER: 'true' } });
  const ends = new Ends(engine);
  try {
    const devices = await createFleet(engine.api, 'bench-rpc', count);
    const key = await engine.api.createKey();
    for (const device of devices) await ends.startPolling(device);
    for (let n = 0; n < operatorConnections; n += 1) await ends.addOperator();
    await offer(ends, devices, key, { rate, seconds: warmupSeconds, what: 'warming up' });
    const { histogram, failed } = await offer(ends, devices, key, { rate, seconds, what: 'measuring' });
    await ends.close();
    const { p50Ms, p99Ms, maxMs } = summaryOf(histogram);
    table(
      [`${rate} commands/s, ${count} devices`, 'p50 ms', 'p99 ms', 'max ms', 'round trips', 'failed'],
      [['REST → other worker → poll → reply → REST', p50Ms, p99Ms, maxMs, histogram.total, failed]],
    );
    const { refused, broken } = ends;
    for (const [why, times] of Object.entries(refused)) say(`connects that failed with ${why}: ${figure(times)}`);
    for (const [why, times] of Object.entries(broken)) say(`requests that failed with ${why}: ${figure(times)}`);
    say(`target: p99 ${p99MsMax} ms, none failed`);
    const targets = new Targets();
    targets.atMost('commands: p99', p99Ms, p99MsMax, ' ms');
    targets.none('commands that failed:', failed);
    targets.none('connects that failed:', totalOf(refused));
    const holds = targets.tell();
    const latency = summaryOf(histogram);
    const { missed } = targets;
    writeResult('rpc', settings, { rate, latency, roundTrips: histogram.total, failed, refused, broken, missed });
    return holds;
  } finally {
    await ends.close();
    await engine.destroy();
  }
}

/** Connections of operators to worker 0 and of devices to worker 1. */
class Ends {
  /** Connections without a call in flight. */
  readonly free: RawConnection[] = [];
  /** Connects and requests that failed, by their reason. */
  readonly refused: Record<string, number> = {};
  readonly broken: Record<string, number> = {};
  readonly #engine: Engine;
  readonly #open = new Set<RawConnection>();
  readonly #polling: Promise<void>[] = [];
  #isClosed = false;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  async addOperator(): Promise<void> {
    const connection = await this.#connect(0);
    if (connection) this.free.push(connection);
  }

  /** A device polls as soon as it is connected: an idle connection would be closed. */
  async startPolling(device: Device): Promise<void> {
    const connection = await this.#connect(1);
    if (connection) this.#polling.push(this.#poll(device, connection));
  }

  /** Makes a call on the connection. Returns undefined when that breaks; then another one takes its place. */
  async call(connection: RawConnection, request: RawRequest): Promise<RawResponse | undefined> {
    try {
      const answer = await restOn(connection, '', request);
      this.free.push(connection);
      return answer;
    } catch (error) {
      this.#break(connection, error);
      void this.addOperator();
      return undefined;
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const connection of this.#open) connection.close();
    await Promise.all(this.#polling);
  }

  /** Acts as a simple device: poll, reply, poll again, on one connection. */
  async #poll({ token }: Device, first: RawConnection): Promise<void> {
    let connection: RawConnection | undefined = first;
    while (connection !== undefined && !this.#isClosed) {
      try {
        const polled = await connection.ask({ method: 'GET', path: `/api/v1/${token}/rpc?timeout=8000` }, pollMsMax);
        if (polled.status !== 200) continue;
        const { id, params } = JSON.parse(polled.body.toString()) as { id: number; params: number };
        await connection.ask({ path: `/api/v1/${token}/rpc/${id}`, body: `{"n":${params}}` });
      } catch (error) {
        this.#break(connection, error);
        connection = await this.#connect(1);
      }
    }
  }

  /** A refused attempt is counted and repeated. Returns undefined when all were refused, or this has been closed. */
  async #connect(worker: number): Promise<RawConnection | undefined> {
    for (let tries = 0; tries < connectTriesMax && !this.#isClosed; tries += 1) {
      try {
        const connection = await connectTo(this.#engine, worker);
        if (this.#isClosed) connection.close();
        else this.#open.add(connection);
        return connection;
      } catch (error) {
        count(this.refused, error);
        await sleep(retryMs);
      }
    }
    return undefined;
  }

  #break(connection: RawConnection, error: unknown): void {
    connection.close();
    this.#open.delete(connection);
    if (!this.#isClosed) count(this.broken, error);
  }
}

function count(counts: Record<string, number>, error: unknown): void {
  const { code, message } = error as NodeJS.ErrnoException;
  // The message may go on with what was received.
  const reason = code ?? message.split(';', 1)[0]!;
  counts[reason] = (counts[reason] ?? 0) + 1;
}

async function connectTo(engine: Engine, worker: number): Promise<RawConnection> {
  const connections = await connectToEachWorker(engine.port);
  for (const [n, connection] of connections.entries()) if (n !== worker) connection.close();
  return connections[worker]!;
}

async function offer(
  ends: Ends,
  devices: Device[],
  key: string,
  { rate, seconds, what }: { rate: number; seconds: number; what: string },
) {
  const histogram = new Histogram();
  const begin = performance.now();
  const total = rate * seconds;
  let failed = 0;
  let ended = 0;
  let next = 0;

  const call = async (n: number, operator: RawConnection): Promise<void> => {
    const answer = await ends.call(operator, {
      headers: { 'x-authorization': `ApiKey ${key}` },
      path: `/api/rpc/twoway/${devices[n % devices.length]!.id}`,
      body: `{"method":"bench","params":${n}}`,
    });
    if (answer?.status !== 200 || answer.body.toString() !== `{"n":${n}}`) failed += 1;
    else histogram.record((performance.now() - begin - (n * 1000) / rate) * 1000);
    ended += 1;
  };

  const deadline = begin + seconds * 1000 + endMsMax;
  const view = new WaitView(what);
  view.note('', { leastSeconds: seconds, mostSeconds: seconds });
  try {
    while (ended < total && performance.now() < deadline) {
      while (next < total && performance.now() - begin >= (next * 1000) / rate && ends.free.length > 0) {
        void call(next++, ends.free.shift()!);
      }
      await sleep(1);
    }
  } finally {
    view.end();
  }
  return { histogram, failed: failed + total - ended };
}
