/**
 * Round trips of commands: REST on one worker → the poll of a device on the other → its reply → the caller. Offered at
 * a fixed rate; a latency counts from the moment at which the call was due, so a late one is not hidden.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Device } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import type { RawConnection } from '../../test/harness/raw.ts';
import { connectToEachWorker, restOn } from '../../test/harness/workers.ts';
import { createFleet } from '../engine-under-load.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const p99MsMax = 10;
/** After this time the code of all four processes is compiled. */
const warmupSeconds = 10;
const operatorConnections = 32;
const endMsMax = 15_000;

export async function runRpc(settings: BenchSettings): Promise<boolean> {
  const { devices: count, rate, seconds } = settings.rpc;
  const engine = await startEngine({ workers: 2, env: { LOG_LEVEL: 'warn', HTTP_TELL_WORKER: 'true' } });
  const ends = new Ends();
  try {
    const devices = await createFleet(engine.api, 'bench-rpc', count);
    const polling = await startPolling(engine, ends, devices);
    for (let n = 0; n < operatorConnections; n += 1) ends.operators.push(await connectTo(engine, 0));
    const key = await engine.api.createKey();
    await offer(ends.operators, devices, key, rate, warmupSeconds);
    const { histogram, failed } = await offer(ends.operators, devices, key, rate, seconds);
    ends.close();
    await Promise.all(polling);
    const { p50Ms, p99Ms, maxMs } = summaryOf(histogram);
    table(
      [`${rate} commands/s, ${count} devices`, 'p50 ms', 'p99 ms', 'max ms', 'round trips', 'failed'],
      [['REST → other worker → poll → reply → REST', p50Ms, p99Ms, maxMs, histogram.total, failed]],
    );
    say(`target: p99 ${p99MsMax} ms, none failed`);
    writeResult('rpc', settings, { rate, latency: summaryOf(histogram), roundTrips: histogram.total, failed });
    return p99Ms <= p99MsMax && failed === 0;
  } finally {
    ends.close();
    await engine.destroy();
  }
}

/** Connections of operators to worker 0 and of devices to worker 1. */
class Ends {
  readonly operators: RawConnection[] = [];
  readonly devices: RawConnection[] = [];
  closed = false;

  close(): void {
    this.closed = true;
    for (const connection of [...this.operators, ...this.devices]) connection.close();
  }
}

/** Each device polls as soon as it is connected: an idle connection would be closed. */
async function startPolling(engine: Engine, ends: Ends, devices: Device[]): Promise<Promise<void>[]> {
  const polling: Promise<void>[] = [];
  for (const device of devices) {
    const connection = await connectTo(engine, 1);
    ends.devices.push(connection);
    polling.push(answerCommands(device, connection, ends));
  }
  return polling;
}

async function connectTo(engine: Engine, worker: number): Promise<RawConnection> {
  const connections = await connectToEachWorker(engine.port);
  for (const [n, connection] of connections.entries()) if (n !== worker) connection.close();
  return connections[worker]!;
}

/** Acts as a simple device: poll, reply, poll again, on one connection. */
async function answerCommands({ token }: Device, connection: RawConnection, ends: Ends): Promise<void> {
  try {
    while (!ends.closed) {
      const request = { method: 'GET', path: `/api/v1/${token}/rpc?timeout=8000` };
      const polled = await connection.ask(request, 20_000);
      if (polled.status !== 200) continue;
      const { id, params } = JSON.parse(polled.body.toString()) as { id: number; params: number };
      await connection.ask({ path: `/api/v1/${token}/rpc/${id}`, body: `{"n":${params}}` });
    }
  } catch (error) {
    if (!ends.closed) throw error;
  }
}

async function offer(operators: RawConnection[], devices: Device[], key: string, rate: number, seconds: number) {
  const histogram = new Histogram();
  const free = [...operators];
  const begin = performance.now();
  const total = rate * seconds;
  let failed = 0;
  let ended = 0;
  let next = 0;

  const call = async (n: number, operator: RawConnection): Promise<void> => {
    const body = `{"method":"bench","params":${n}}`;
    const answer = await restOn(operator, '', {
      headers: { 'x-authorization': `ApiKey ${key}` },
      path: `/api/rpc/twoway/${devices[n % devices.length]!.id}`,
      body,
    });
    if (answer.status !== 200 || answer.body.toString() !== `{"n":${n}}`) failed += 1;
    else histogram.record((performance.now() - begin - (n * 1000) / rate) * 1000);
    ended += 1;
    free.push(operator);
  };

  const deadline = begin + seconds * 1000 + endMsMax;
  while (ended < total && performance.now() < deadline) {
    while (next < total && performance.now() - begin >= (next * 1000) / rate && free.length > 0) {
      void call(next++, free.shift()!);
    }
    await sleep(1);
  }
  return { histogram, failed: failed + total - ended };
}
