/**
 * The state of receipts whose rows ClickHouse refuses, and of receipts after `kill -9` of a worker and of the whole
 * engine (docs/rest.md#receipts). A constraint of the table makes the embedded ClickHouse refuse one key.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { postForReceipt, proveSuspects, readReceipt } from '../harness/receipts.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
});

afterAll(() => engine?.destroy());

// biome-ignore lint/suspicious/noExplicitAny: an answer of the REST API
type Json = any;

const body = (values: object) => JSON.stringify({ ts: 1_700_000_000_000, values });
const give = async (device: Device, values: object) =>
  (await postForReceipt(device.token, body(values), engine.api)) as string;
const read = (receipt: string): Promise<Json> => readReceipt(receipt, engine.api);
const readAs = (receipt: string, state: string, msMax = 40_000): Promise<Json> =>
  eventually(async () => {
    const answer = await read(receipt);
    return answer.state === state ? answer : undefined;
  }, msMax);
const points = (answer: Json): string[] =>
  answer.namedPoints.map(({ key, state, reason }: Json) => `${key} ${state} ${reason}`).sort();

test('a row that ClickHouse refuses is a suspect, then in quarantine, and stored after a replay; others are stored', async () => {
  const device = await engine.api.newDevice();
  await engine.clickhouseCommand(`ALTER TABLE telemetry ADD CONSTRAINT refused CHECK key != 'bad'`);
  const receipt = await give(device, { bad: 1, good: 2 });
  const other = await give(device, { later: 3 });
  const suspect = await readAs(receipt, 'suspect');
  expect(points(suspect)).toEqual(['bad suspect ClickHouse error 469', 'good stored null']);
  expect(suspect).toMatchObject({ journal: 'waiting', storedBefore: null });
  expect((await readAs(other, 'stored')).namedPoints).toMatchObject([{ key: 'later', reason: null }]);

  await engine.stop();
  expect(await proveSuspects(engine)).toBe(1);
  await engine.start();
  // Either worker may answer, and one of them has the row in the quarantine of its journal.
  for (let n = 0; n < 8; n += 1) {
    const quarantined = await readAs(receipt, 'quarantined');
    expect(points(quarantined)).toEqual(['bad quarantined ClickHouse error 469', 'good stored null']);
  }
  await eventually(async () => (await read(receipt)).journal === 'stored', 40_000);
  expect((await read(receipt)).state).toBe('quarantined');

  await engine.clickhouseCommand('ALTER TABLE telemetry DROP CONSTRAINT refused');
  const command = ['dist/quarantine.js', 'replay'];
  const { stdout } = await promisify(execFile)(process.execPath, command, { env: engine.environment });
  expect(stdout).toContain('1 row stored, 0 entries refused again');
  expect(points(await read(receipt))).toEqual(['bad stored null', 'good stored null']);
});

test('a receipt stays true after kill -9 of each worker and of the whole engine: journaled until it is stored', async () => {
  const room = (bytes: number) =>
    engine.clickhouseCommand(`ALTER TABLE telemetry MODIFY SETTING min_free_disk_bytes_to_perform_insert = ${bytes}`);
  await room(1e15);
  const device = await engine.api.newDevice();
  const receipts: string[] = [];
  const writers = new Set<number>();
  while (writers.size < 2) {
    const receipt = await give(device, { [`k${receipts.length}`]: 1 });
    receipts.push(receipt);
    writers.add((await read(receipt)).writer);
  }
  const states = async () =>
    new Set((await Promise.all(receipts.map(read))).map(({ state, journal }) => `${state} ${journal}`));
  const waiting = new Set(['journaled waiting']);
  expect(await states()).toEqual(waiting);
  for (const worker of ['worker-0', 'worker-1']) {
    const pid = await engine.kill(worker);
    // The sockets of a killed process may outlive it for a moment.
    expect(await eventually(states, 10_000)).toEqual(waiting);
    await eventually(() => ![undefined, pid].includes(engine.pids().get(worker)), 30_000);
    await engine.ready();
    expect(await states()).toEqual(waiting);
  }
  await engine.killAll();
  await engine.start();
  expect(await states()).toEqual(waiting);
  await room(0);
  const seen = new Set<string>();
  await eventually(async () => {
    const now = await states();
    for (const state of now) seen.add(state);
    return now.size === 1 && now.has('stored stored');
  }, 60_000);
  expect([...seen].filter((state) => !/^(journaled waiting|stored (waiting|stored))$/.test(state))).toEqual([]);
});
