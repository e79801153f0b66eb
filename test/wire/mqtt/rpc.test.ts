/**
 * Commands to a device over MQTT (docs/mqtt.md#commands-and-calls). The operator is on one worker, the device on the
 * same or on the other.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { connectMqtt, hex, levels, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';
import { connectMqttOn } from '../../harness/mqtt-workers.ts';
import type { RawConnection } from '../../harness/raw.ts';
import { answerText, command, poll, received, refusal, reply } from '../../harness/rpc.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { connectToEachWorker } from '../../harness/workers.ts';

const requests = 'v1/devices/me/rpc/request/';
const responses = 'v1/devices/me/rpc/response/';

/** One connection to each worker. */
let operators: RawConnection[];

beforeEach(async () => {
  operators = await connectToEachWorker(sharedEngine().address.port);
});

afterEach(() => {
  for (const connection of operators) connection.close();
});

async function listening(client: MqttClient, filter = `${requests}+`, qos: 0 | 1 = 1): Promise<void> {
  expect(await client.subscribe({ [filter]: qos })).toEqual([qos]);
}

/** Sends a command over any worker; returns the status that the operator gets. */
async function oneway(device: Device, method: string): Promise<number> {
  return (await sharedEngine().send('POST', `/api/rpc/oneway/${device.id}`, { method })).status;
}

function persistent({ id }: Device, members: object): Promise<string> {
  return sharedEngine().sendPersistent(id, { timeout: 60_000, ...members });
}

/** Returns the status of a command once it is one of `wanted`. */
function statusOf(rpcId: string, ...wanted: string[]): Promise<string> {
  return eventually(async () => {
    const { status } = await sharedEngine().persistentState(rpcId);
    return wanted.includes(status) ? status : undefined;
  });
}

test.each(levels)('a command reaches the device, and its reply the caller unchanged: level %s', (level) =>
  withDevice({ level }, async (client, device) => {
    await listening(client);
    const calling = command(operators[0]!, 'twoway', device, '{"method":"setGpio","params":{"pin":1,"x":42.0}}');
    const message = await client.message(`${requests}1`);
    expect([message.text, message.packet.qos]).toEqual(['{"method":"setGpio","params":{"pin":1,"x":42.0}}', 1]);
    await client.publish(`${responses}1`, '{"ok": true, "n": 9223372036854775807}');
    expect(answerText(await calling)).toBe('200 {"ok": true, "n": 9223372036854775807}');
  }),
);

test.each([
  ['the same worker', 0, 0],
  ['the other worker', 0, 1],
  ['the same worker as the second', 1, 1],
  ['the other worker than the second', 1, 0],
])('operator and device on %s', async (_, operator, worker) => {
  const device = await newDevice();
  const client = await connectMqttOn(worker, { token: device.token });
  await listening(client);
  for (let n = 1; n <= 3; n += 1) {
    const calling = command(operators[operator]!, 'twoway', device, { method: 'm', params: n });
    const { packet, text } = await client.message();
    expect([packet.topic, text]).toEqual([`${requests}${n}`, `{"method":"m","params":${n}}`]);
    await client.publish(`${responses}${n}`, `${n}`);
    expect(answerText(await calling)).toBe(`200 ${n}`);
  }
  await client.disconnect();
});

test('params that are not given are null', () =>
  withDevice({}, async (client, device) => {
    await listening(client);
    const calling = command(operators[0]!, 'oneway', device, { method: 'm' });
    expect((await client.message()).text).toBe('{"method":"m","params":null}');
    expect(answerText(await calling)).toBe('200 ');
  }));

test('commands are sent on the topic family subscribed last; replies are accepted on each', () =>
  withDevice({}, async (client, device) => {
    const families = [
      [`${requests}+`, requests, responses],
      ['v2/r/req/+', 'v2/r/req/', 'v2/r/res/'],
      ['v2/r/req/j/+', 'v2/r/req/j/', 'v2/r/res/j/'],
    ];
    for (const [n, [filter, request, response]] of families.entries()) {
      await listening(client, filter, n === 1 ? 0 : 1);
      const calling = command(operators[n % 2]!, 'twoway', device, { method: 'm' });
      expect((await client.message()).packet).toMatchObject({ topic: `${request}${n + 1}`, qos: n === 1 ? 0 : 1 });
      await client.publish(`${response}${n + 1}`, '"fine"');
      expect(answerText(await calling)).toBe('200 "fine"');
    }
  }));

test('a reply that is not JSON reaches the caller as a JSON string', () =>
  withDevice({}, async (client, device) => {
    await listening(client);
    const calling = command(operators[0]!, 'twoway', device, { method: 'm' });
    await client.message();
    await client.publishQos0(`${responses}1`, 'fine, "thanks"');
    expect(answerText(await calling)).toBe('200 "fine, \\"thanks\\""');
  }));

test('a reply to an unknown command is acknowledged; one without a proper id or body is 0x99', () =>
  withDevice({}, async (client) => {
    const f = async (topic: string, body: string) => hex((await client.publish(topic, body)).reasonCode);
    expect(await f(`${responses}999`, '{}')).toBe('0x00');
    expect(await f(`${responses}-1`, '{}')).toBe('0x00');
    expect(await f('v2/r/res/999', '{}')).toBe('0x00');
    expect(await f(`${responses}abc`, '{}')).toBe('0x99');
    expect(await f(`${responses}2147483648`, '{}')).toBe('0x99');
    expect(await f(responses, '{}')).toBe('0x99');
    expect(await f(`${responses}1`, '')).toBe('0x99');
    expect(await f('v2/r/res/p/1', '{}')).toBe('0x99');
    await client.quiet();
  }));

test('commands that wait come at once when the device subscribes, the oldest first', async () => {
  const device = await newDevice();
  const callings: Promise<number>[] = [];
  for (let n = 0; n < 4; n += 1) {
    callings.push(oneway(device, `m${n}`));
    await sleep(100);
  }
  await withMqtt(device, async (client) => {
    await client.nothingFor(100);
    await listening(client);
    const methods = [];
    for (let n = 0; n < 4; n += 1) {
      const { topic, json } = await client.message();
      expect(topic).toBe(`${requests}${n + 1}`);
      methods.push(json.method);
    }
    // A busy machine may number two commands in the other order.
    expect(methods.sort()).toEqual(['m0', 'm1', 'm2', 'm3']);
    expect(await Promise.all(callings)).toEqual([200, 200, 200, 200]);
  });
});

test('after UNSUBSCRIBE no command comes, and it waits for the next SUBSCRIBE', () =>
  withDevice({}, async (client, device) => {
    await listening(client);
    expect(await client.unsubscribe(`${requests}+`)).toEqual([0]);
    const calling = command(operators[0]!, 'oneway', device, { method: 'm' });
    await client.nothingFor(300);
    await listening(client);
    expect((await client.message()).json.method).toBe('m');
    expect(answerText(await calling)).toBe('200 ');
  }));

test('of a poll and a connection of one device exactly one gets the command', () =>
  withDevice({}, async (client, device) => {
    await listening(client);
    const polling = poll(operators[1]!, device, '?timeout=6000');
    await sleep(100);
    const calling = command(operators[0]!, 'oneway', device, { method: 'once' });
    if (await Promise.race([client.message(`${requests}1`).then(() => true), polling.then(() => false)])) {
      expect((await polling).status).toBe(408);
    } else {
      expect((await polling).status).toBe(200);
      await client.nothingFor(500);
    }
    expect((await calling).status).toBe(200);
  }));

test('a persistent command to an offline device is delivered when it subscribes', async () => {
  const device = await newDevice();
  const rpcId = await persistent(device, { method: 'later', params: { a: 1 } });
  await sleep(300);
  await withMqtt(device, async (client) => {
    await listening(client);
    expect((await client.message(`${requests}1`)).text).toBe('{"method":"later","params":{"a":1}}');
    expect(await statusOf(rpcId, 'DELIVERED')).toBe('DELIVERED');
    await client.publish(`${responses}1`, '{"done":1}');
    expect(await statusOf(rpcId, 'SUCCESSFUL')).toBe('SUCCESSFUL');
    expect((await sharedEngine().persistentState(rpcId)).response).toEqual({ done: 1 });
  });
});

test('a persistent command without a PUBACK before the end is delivered again, with the same id', async () => {
  const device = await newDevice();
  const first = await connectMqttOn(1, { token: device.token });
  await listening(first);
  const rpcId = await persistent(device, { method: 'again' });
  await first.message(`${requests}1`, { ack: false });
  expect(await statusOf(rpcId, 'SENT')).toBe('SENT');
  first.cut();
  expect(await statusOf(rpcId, 'TIMEOUT', 'QUEUED')).toBe('TIMEOUT');
  const second = await connectMqttOn(0, { token: device.token });
  await listening(second);
  expect((await second.message(`${requests}1`)).json.method).toBe('again');
  expect(await statusOf(rpcId, 'DELIVERED')).toBe('DELIVERED');
  second.cut();
});

test('a one-way command is delivered when it is acknowledged, and comes again when the connection ended before', async () => {
  const device = await newDevice();
  const first = await connectMqtt(device);
  await listening(first);
  const sending = oneway(device, 'm');
  await first.message(`${requests}1`, { ack: false });
  first.cut();
  await withMqtt(device, async (client) => {
    await listening(client);
    await client.message(`${requests}1`);
    expect(await sending).toBe(200);
  });
});

test('with QoS 0 a persistent command is delivered when it is written', () =>
  withDevice({}, async (client, device) => {
    await listening(client, `${requests}+`, 0);
    const rpcId = await persistent(device, { method: 'm' });
    expect((await client.message()).packet.qos).toBe(0);
    expect(await statusOf(rpcId, 'DELIVERED')).toBe('DELIVERED');
  }));

test('a command that is larger than the device accepts fails with that reason, and later ones arrive', () =>
  withDevice({ properties: { maximumPacketSize: 200 } }, async (client, device) => {
    const large = { method: 'large', params: 'x'.repeat(300) };
    await listening(client);
    for (const operator of operators) {
      expect(refusal(await command(operator, 'twoway', device, large))).toMatch(/^413\/31 .*Maximum Packet Size/);
    }
    const rpcId = await persistent(device, large);
    expect(await statusOf(rpcId, 'FAILED')).toBe('FAILED');
    expect(JSON.stringify((await sharedEngine().persistentState(rpcId)).response)).toContain('Maximum Packet Size');
    const calling = command(operators[0]!, 'oneway', device, { method: 'small' });
    expect((await client.message()).json.method).toBe('small');
    expect(answerText(await calling)).toBe('200 ');
  }));

test('more commands than the Receive Maximum of the device come as it acknowledges', () =>
  withDevice({ properties: { receiveMaximum: 2 } }, async (client, device) => {
    await listening(client);
    const sending = Array.from({ length: 5 }, (_, n) => persistent(device, { method: `m${n}` }));
    const rpcIds = await Promise.all(sending);
    const first = [await client.expect('publish'), await client.expect('publish')];
    // The session has all five.
    for (const rpcId of rpcIds) expect(await statusOf(rpcId, 'SENT')).toBe('SENT');
    await client.quiet();
    for (const { messageId } of first) await client.write({ cmd: 'puback', messageId: messageId! });
    const topics = first.map(({ topic }) => topic);
    for (let n = 0; n < 3; n += 1) topics.push((await client.message()).topic);
    expect(new Set(topics).size).toBe(5);
    for (const rpcId of rpcIds) expect(await statusOf(rpcId, 'DELIVERED')).toBe('DELIVERED');
  }));

test('a new connection of the device takes over its commands', async () => {
  const device = await newDevice();
  const old = await connectMqtt(device);
  await listening(old);
  await withMqtt(device, async (client) => {
    await listening(client);
    await old.closed();
    const calling = command(operators[0]!, 'twoway', device, { method: 'm' });
    await client.message(`${requests}1`);
    expect((await reply(operators[1]!, device, 1, '"by http"')).status).toBe(200);
    expect(answerText(await calling)).toBe('200 "by http"');
  });
  expect(old.received.filter(({ cmd }) => cmd === 'publish')).toEqual([]);
  old.cut();
});

test('a device that polls gets what a device that connected gets', async () => {
  const device = await newDevice();
  const polling = poll(operators[1]!, device);
  await sleep(100);
  const calling = command(operators[0]!, 'twoway', device, { method: 'm' });
  expect(received(await polling).id).toBe(1);
  await withMqtt(device, async (client) => {
    await client.publish(`${responses}1`, '"by mqtt"');
    expect(answerText(await calling)).toBe('200 "by mqtt"');
  });
});
