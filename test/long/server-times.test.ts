/**
 * Points without `ts`, over keep-alive connections to known workers: each is stored at the time of its arrival, and
 * none replaces another. A sender that waits for each acknowledgement finds its points in the order of sending,
 * although different workers have accepted them.
 */
import { randomUUID } from 'node:crypto';
import { Agent, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

const workers = 3;
let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers, env: { HTTP_TELL_WORKER: 'true' } });
});

afterAll(() => engine.destroy());

interface Sent {
  sentMs: number;
  acknowledgedMs: number;
}

/** A sender with one connection, which sends one message at a time. */
class Sender {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 });
  readonly #path: string;

  constructor(device: Device) {
    this.#path = `/api/v1/${device.token}/telemetry`;
  }

  /**
   * Sends until the message is acknowledged. A worker whose disk or processor is busy with other tests refuses for a
   * moment, and nothing of a refused message is stored.
   */
  async store(body: string): Promise<Sent & { worker: number }> {
    for (;;) {
      const sentMs = Date.now();
      const { status, worker } = await this.#post(body);
      if (status === 200) return { sentMs, acknowledgedMs: Date.now(), worker };
      expect(status).toBe(503);
      await sleep(100);
    }
  }

  #post(body: string): Promise<{ status: number; worker: number }> {
    const options = { port: engine.port, path: this.#path, method: 'POST', agent: this.#agent };
    return new Promise((resolve, reject) => {
      const sent = request(options, (answer) => {
        answer.resume();
        const worker = Number(answer.headers['x-millrace-worker']);
        answer.on('end', () => resolve({ status: answer.statusCode!, worker }));
      });
      sent.on('error', reject);
      sent.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** Returns one sender for each worker; the kernel chooses the worker, so connections are opened until each has one. */
async function senderOfEachWorker(device: Device): Promise<Sender[]> {
  const senders = new Map<number, Sender>();
  for (let attempt = 0; attempt < 300 && senders.size < workers; attempt += 1) {
    const sender = new Sender(device);
    const { worker } = await sender.store('{"probe":1}');
    if (senders.has(worker)) sender.close();
    else senders.set(worker, sender);
  }
  expect(senders.size).toBe(workers);
  return [...senders.values()];
}

/** Stores rising numbers as fast as each sender gets its acknowledgements. */
async function load(senders: Sender[], key: string, sent: Sent[], messages: number): Promise<void> {
  let next = sent.length;
  const end = next + messages;
  await Promise.all(
    senders.map(async (sender) => {
      while (next < end) {
        const n = next++;
        sent[n] = await sender.store(`{"${key}":${n}}`);
      }
    }),
  );
}

test('a fast device over several workers and a restart: all is stored, each point at its arrival', async () => {
  const device = await engine.api.createDevice('fast');
  const sent: Sent[] = [];
  // A retry uses another key.
  const key = `n-${randomUUID()}`;
  for (const messages of [600, 200]) {
    const senders = Array.from({ length: 12 }, () => new Sender(device));
    await load(senders, key, sent, messages);
    for (const sender of senders) sender.close();
    if (messages === 600) await engine.restart();
  }
  const stored = await eventually(async () => {
    const rows = await engine.clickhouse(`SELECT int, ts FROM telemetry FINAL WHERE key = '${key}'`);
    return rows.length >= sent.length ? rows : undefined;
  }, 40_000);
  expect(new Set(stored.map(([n]) => n)).size).toBe(sent.length);
  expect(stored).toHaveLength(sent.length);
  // The engine follows the database's clock. The error of its measurement is at most a round trip to the database.
  const slackMs = 250;
  const elsewhere = stored.filter(([n, ts]) => {
    const { sentMs, acknowledgedMs } = sent[Number(n)]!;
    return Number(ts) < sentMs - slackMs || Number(ts) > acknowledgedMs + slackMs;
  });
  expect(elsewhere).toEqual([]);
});

test('a sender that waits for each acknowledgement finds its points in that order, over all workers', async () => {
  const device = await engine.api.createDevice('patient');
  const senders = await senderOfEachWorker(device);
  const messages = 300;
  const startTs = Date.now() - 10_000;
  for (let n = 0; n < messages; n += 1) await senders[(n * 7) % workers]!.store(`{"order":${n}}`);
  const trials = 8;
  for (let trial = 0; trial < trials; trial += 1) {
    for (let n = 0; n < 4; n += 1) await senders[(n * 5 + trial) % workers]!.store(`{"last${trial}":${n}}`);
  }
  for (const sender of senders) sender.close();
  const range = { startTs, endTs: Date.now() + 10_000, limit: messages + 1 };
  const read = await eventually(async () => {
    const { order = [] } = await engine.api.readSeries(device.id, ['order'], range);
    return order.length >= messages ? order.map(({ value }) => Number(value)) : undefined;
  }, 20_000);
  const inversions = read.filter((n, i) => i > 0 && n !== read[i - 1]! + 1);
  expect([read[0], read.length, inversions]).toEqual([0, messages, []]);
  await eventually(async () => {
    const answer = await engine.api.send('GET', `/api/plugins/telemetry/DEVICE/${device.id}/values/timeseries`);
    const all = (await answer.json()) as Record<string, { value: string }[]>;
    const shown = Array.from({ length: trials }, (_, trial) => all[`last${trial}`]?.[0]?.value);
    return shown.every((value) => value === '3') ? true : undefined;
  }, 10_000);
});

test('the records of one message without ts keep their order, also in several frames', async () => {
  const device = await engine.api.createDevice('burst');
  const count = 50_000;
  const key = `burst-${randomUUID()}`;
  const body = JSON.stringify(Array.from({ length: count }, (_, n) => ({ [key]: n })));
  await new Sender(device).store(body);
  const values = await eventually(async () => {
    const rows = await engine.clickhouse(
      `SELECT int, ts FROM telemetry FINAL WHERE key = '${key}' ORDER BY device, key, ts, seq, origin`,
    );
    return rows.length >= count ? rows : undefined;
  }, 40_000);
  expect(values.every(([n], i) => Number(n) === i)).toBe(true);
  expect(new Set(values.map(([, ts]) => ts)).size).toBe(1);
});
