/**
 * Commands to devices as the device sees them (docs/http.md#commands). The operator is on one
 * worker, the device polls on the other; replies come to either.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { leastMs } from '../../harness/least-time.ts';
import { RawConnection, requestBytes } from '../../harness/raw.ts';
import { answerText, command, poll, received, refusal, reply } from '../../harness/rpc.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { connectToEachWorker } from '../../harness/workers.ts';

/** One on each worker for the operator, and one on each for the device. */
let operators: RawConnection[];
let devices: RawConnection[];

beforeEach(async () => {
  const { port } = sharedEngine().address;
  [operators, devices] = await Promise.all([connectToEachWorker(port), connectToEachWorker(port)]);
});

afterEach(() => {
  for (const connection of [...operators, ...devices]) connection.close();
});

test('a poll without a command is answered 408 with a timeout message in the error shape', async () => {
  const device = await newDevice();
  const begin = performance.now();
  const answer = await poll(devices[0]!, device, '?timeout=1000');
  expect(refusal(answer)).toBe('408/2 No command came in time; poll again.');
  expect(performance.now() - begin).toBeGreaterThan(900);
  expect(performance.now() - begin).toBeLessThan(9_000);
});

test.each([
  ['the same worker', 0, 0, 0],
  ['poll and reply on the other worker', 0, 1, 1],
  ['poll on the other worker, reply on the own one', 0, 1, 0],
  ['poll on the own worker, reply on the other one', 1, 1, 0],
])('a command reaches the poll and its reply the caller: %s', async (_, operator, polled, replied) => {
  const device = await newDevice();
  const polling = poll(devices[polled]!, device);
  await sleep(50);
  const calling = command(operators[operator]!, 'twoway', device, { method: 'setGpio', params: { pin: 1 } });
  const answer = await polling;
  expect(answer.body.toString()).toBe('{"id":1,"method":"setGpio","params":{"pin":1}}');
  expect(answer.headers.get('content-type')).toBe('application/json');
  const acknowledged = await reply(devices[replied]!, device, 1, '{"ok":true}');
  expect(answerText(acknowledged)).toBe('200 {"result":"ok"}');
  expect(acknowledged.headers.get('content-type')).toBe('application/json');
  expect(answerText(await calling)).toBe('200 {"ok":true}');
});

test('ids count up for each device, over all workers', async () => {
  const device = await newDevice();
  const ids: number[] = [];
  for (let n = 0; n < 6; n += 1) {
    const polling = poll(devices[n % 2]!, device);
    const [, answer] = await Promise.all([
      command(operators[(n >> 1) % 2]!, 'oneway', device, { method: `m${n}` }),
      polling,
    ]);
    ids.push(received(answer).id);
  }
  expect(ids).toEqual([1, 2, 3, 4, 5, 6]);
});

test('a command that waits is delivered to the next poll at once, and to that one only', async () => {
  const device = await newDevice();
  // The next repetition of a command comes more than 700 ms after the poll.
  const deliveredMs = async () => {
    const calling = command(operators[0]!, 'oneway', device, { method: 'wait' });
    await sleep(300);
    const begin = performance.now();
    expect(received(await poll(devices[1]!, device)).method).toBe('wait');
    const ms = performance.now() - begin;
    expect(answerText(await calling)).toBe('200 ');
    expect((await poll(devices[1]!, device, '?timeout=300')).status).toBe(408);
    expect((await poll(devices[0]!, device, '?timeout=300')).status).toBe(408);
    return ms;
  };
  expect(await leastMs(700, deliveredMs)).toBeLessThan(700);
});

/** Gives a new device four commands, of owners on both workers; returns the ids in the order of their deliveries. */
async function idsDelivered(): Promise<number[]> {
  const device = await newDevice();
  const callings = [];
  const { port } = sharedEngine().address;
  const more = await connectToEachWorker(port);
  const owners = [operators[1]!, operators[0]!, more[1]!, more[0]!];
  for (const owner of owners) {
    callings.push(command(owner, 'oneway', device, { method: 'm' }));
    await sleep(300);
  }
  const ids: number[] = [];
  for (let n = 0; n < owners.length; n += 1) ids.push(received(await poll(devices[n % 2]!, device)).id);
  for (const calling of callings) expect(answerText(await calling)).toBe('200 ');
  for (const connection of more) connection.close();
  return ids;
}

test('of several waiting commands the oldest is delivered first, over all workers', async () => {
  expect(await idsDelivered()).toEqual([1, 2, 3, 4]);
});

test('of two polls that wait exactly one gets the command', async () => {
  const device = await newDevice();
  const polls = devices.map((connection) => poll(connection, device, '?timeout=6000'));
  await sleep(50);
  expect((await command(operators[0]!, 'oneway', device, { method: 'once' })).status).toBe(200);
  const statuses = (await Promise.all(polls)).map(({ status }) => status);
  expect(statuses.sort()).toEqual([200, 408]);
});

test('a poll whose client disconnected does not swallow the command', async () => {
  const device = await newDevice();
  const [gone, other] = await connectToEachWorker(sharedEngine().address.port);
  other!.close();
  await gone!.send(requestBytes({ method: 'GET', path: `/api/v1/${device.token}/rpc?timeout=20000` }));
  await sleep(200);
  gone!.close();
  await sleep(200);
  const calling = command(operators[1]!, 'oneway', device, { method: 'still' });
  await sleep(300);
  expect(received(await poll(devices[1]!, device)).method).toBe('still');
  expect(answerText(await calling)).toBe('200 ');
});

test('numbers in params and replies keep every digit', async () => {
  const device = await newDevice();
  const polling = poll(devices[1]!, device);
  await sleep(50);
  const calling = command(operators[0]!, 'twoway', device, '{"method":"n","params":[42.0,9223372036854775807,1e2]}');
  expect((await polling).body.toString()).toBe('{"id":1,"method":"n","params":[42.0,9223372036854775807,1e2]}');
  await reply(devices[0]!, device, 1, '{"a": 42.0, "b": 9223372036854775807}');
  expect(answerText(await calling)).toBe('200 {"a": 42.0, "b": 9223372036854775807}');
});

test('a reply that is not JSON reaches the caller as a JSON string', async () => {
  const device = await newDevice();
  const polling = poll(devices[1]!, device);
  await sleep(50);
  const calling = command(operators[0]!, 'twoway', device, { method: 'say' });
  await polling;
  expect((await reply(devices[1]!, device, 1, 'fine, "thanks"')).status).toBe(200);
  expect(answerText(await calling)).toBe('200 "fine, \\"thanks\\""');
});

test('late, doubled and foreign replies are acknowledged and ignored', async () => {
  const device = await newDevice();
  const other = await newDevice();
  const polling = poll(devices[1]!, device);
  await sleep(50);
  const calling = command(operators[0]!, 'twoway', device, { method: 'who' });
  await polling;
  expect(answerText(await reply(devices[0]!, other, 1, '"foreign"'))).toBe('200 {"result":"ok"}');
  expect(answerText(await reply(devices[0]!, device, 99999, '{}'))).toBe('200 {"result":"ok"}');
  expect(answerText(await reply(devices[0]!, device, 1, '"first"'))).toBe('200 {"result":"ok"}');
  expect(answerText(await reply(devices[1]!, device, 1, '"second"'))).toBe('200 {"result":"ok"}');
  expect(answerText(await calling)).toBe('200 "first"');
});

test('a reply to a command that no session was given yet is ignored', async () => {
  const device = await newDevice();
  const calling = command(operators[0]!, 'twoway', device, { method: 'early', timeout: 5000 });
  await sleep(400);
  await reply(devices[0]!, device, 1, '"guessed"');
  await reply(devices[1]!, device, 1, '"guessed"');
  expect(received(await poll(devices[1]!, device)).id).toBe(1);
  await reply(devices[1]!, device, 1, '"real"');
  expect(answerText(await calling)).toBe('200 "real"');
});

test('what a reply must be is checked in order: id and body, token', async () => {
  const device = await newDevice();
  const nobody = { id: '', token: 'nobody' };
  const [connection] = devices;
  expect(refusal(await reply(connection!, device, 'abc', '{}'))).toMatch(/^400\/31 The id of a command/);
  expect(refusal(await reply(connection!, device, '2147483648', '{}'))).toMatch(/^400\/31 The id of a command/);
  expect(refusal(await reply(connection!, device, '1', ''))).toMatch(/^400\/31 Required request body/);
  expect(refusal(await reply(connection!, nobody, 'abc', '{}'))).toMatch(/^400/);
  expect(refusal(await reply(connection!, nobody, '1', '{}'))).toMatch(/^401\/10/);
});

test('a reply of 65536 bytes is taken, one more byte is 413', async () => {
  const device = await newDevice();
  const body = (bytes: number) => `"${'x'.repeat(bytes - 2)}"`;
  expect((await reply(devices[0]!, device, 1, body(65_536))).status).toBe(200);
  const connection = await RawConnection.open(sharedEngine().address.port);
  expect(refusal(await reply(connection, device, 1, body(65_537)))).toBe(
    '413/31 Payload size exceeds the limit of 65536 bytes',
  );
  connection.close();
  const other = await RawConnection.open(sharedEngine().address.port);
  const chunked = { headers: { 'transfer-encoding': 'chunked' }, path: `/api/v1/${device.token}/rpc` };
  await other.send(requestBytes({ ...chunked, method: 'POST' }));
  await other.send(`10001\r\n${body(65_537)}\r\n0\r\n\r\n`);
  expect((await other.response()).status).toBe(413);
  other.close();
});

test('polls refuse a bad timeout before the token, and an unknown token at once', async () => {
  const device = await newDevice();
  const [connection] = devices;
  expect(refusal(await poll(connection!, { id: '', token: 'nobody' }, '?timeout=x'))).toMatch(/^400/);
  expect(refusal(await poll(connection!, device, '?timeout=-1'))).toMatch(/^400/);
  const begin = performance.now();
  expect(refusal(await poll(connection!, { id: '', token: 'nobody' }))).toMatch(/^401\/10/);
  expect(performance.now() - begin).toBeLessThan(9_000);
});
