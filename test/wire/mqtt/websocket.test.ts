/**
 * MQTT over WebSocket: a stream of bytes in binary messages, whose boundaries have no meaning; all other messages are
 * refused.
 */
import { connectAsync } from 'mqtt';
import { afterEach, expect, test, vi } from 'vitest';
import { unnamedSocketsMax } from '../../../src/mqtt/transport/unnamed-web-sockets.ts';
import type { Device } from '../../harness/api.ts';
import {
  connectBytes,
  frame as packet,
  packetType,
  properties,
  publishBytes,
  string,
  uint16,
} from '../../harness/mqtt-bytes.ts';
import { storedValues, telemetry } from '../../harness/mqtt-device.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { frame, opcode, RawWebSocket } from '../../harness/web-socket.ts';

const packetBytesMax = 65_536;
/** A packet of the greatest size for gateways is accepted. */
const messageBytesMax = 4 * 1024 * 1024;

let client: RawWebSocket | undefined;
afterEach(() => client?.close());

async function open(protocol?: string, path?: string): Promise<RawWebSocket> {
  client = await RawWebSocket.open(sharedEngine().address.port, protocol, path);
  return client;
}

/** Connects with MQTT 3.1.1, because the lengths of its answers are known. */
async function connected(): Promise<{ client: RawWebSocket; device: Device }> {
  const device = await newDevice();
  const socket = await open();
  socket.send(frame(connectBytes({ username: device.token, clientId: 'raw' })));
  expect([...(await socket.read(4))]).toEqual([0x20, 2, 0, 0]);
  return { client: socket, device };
}

const publish = (messageId: number, payload: string) => publishBytes({ topic: telemetry, qos: 1, messageId, payload });
const puback = (messageId: number) => [0x40, 2, 0, messageId];

test('a packet may be split over frames and messages at any byte', async () => {
  const { client: socket, device } = await connected();
  const bytes = publish(7, '{"split":1}');
  for (const byte of bytes.subarray(0, 5)) socket.send(frame(Buffer.from([byte])));
  socket.send(frame(bytes.subarray(5, 9), opcode.binary, false), frame(bytes.subarray(9), opcode.continuation));
  expect([...(await socket.read(4))]).toEqual(puback(7));
  expect(await storedValues(device, 'split')).toEqual(['1']);
});

test('CONNECT, SUBSCRIBE and two PUBLISHes in one frame are answered in order', async () => {
  const device = await newDevice();
  const socket = await open();
  const subscribe = packet(packetType.subscribe, 2, uint16(1), string('v1/devices/me/attributes'), 1);
  const connect = connectBytes({ username: device.token, clientId: 'raw' });
  socket.send(frame(Buffer.concat([connect, subscribe, publish(2, '{"a":1}'), publish(3, '{"b":2}')])));
  const expected = [0x20, 2, 0, 0, 0x90, 3, 0, 1, 1, ...puback(2), ...puback(3)];
  expect([...(await socket.read(expected.length))]).toEqual(expected);
  expect(await storedValues(device, 'b')).toEqual(['2']);
});

test('pings of the WebSocket between the frames of a packet are answered and harm nothing', async () => {
  const { client: socket } = await connected();
  const bytes = publish(9, '{"ping":1}');
  socket.send(
    frame(bytes.subarray(0, 6), opcode.binary, false),
    frame(Buffer.from('hello'), opcode.ping),
    frame(bytes.subarray(6), opcode.continuation),
  );
  expect([...(await socket.read(4))]).toEqual(puback(9));
});

test('MQTT 3.1 clients ask for the sub-protocol mqttv3.1', async () => {
  const device = await newDevice();
  const socket = await open('mqttv3.1');
  expect(socket.upgrade.headers.get('sec-websocket-protocol')).toBe('mqttv3.1');
  socket.send(frame(connectBytes({ level: 3, username: device.token, clientId: 'old' })));
  expect([...(await socket.read(4))]).toEqual([0x20, 2, 0, 0]);
});

test.each(['', 'chat'])('a client that offers the sub-protocol %j is refused with 400', async (protocol) => {
  expect((await open(protocol)).upgrade.status).toBe(400);
});

test('no other path speaks it', async () => {
  expect((await open('mqtt', '/')).upgrade.status).not.toBe(101);
  client!.close();
  expect((await open('mqtt', '/mqtt/other')).upgrade.status).toBe(404);
});

test('text messages end the connection', async () => {
  const { client: socket } = await connected();
  socket.send(frame(publish(1, '{"text":1}'), opcode.text));
  expect((await socket.closed()).code).toBe(1003);
});

test('a packet above the Maximum Packet Size ends it as over TCP: with DISCONNECT 0x95 in MQTT 5', async () => {
  const device = await newDevice();
  const socket = await open();
  socket.send(frame(connectBytes({ level: 5, username: device.token })));
  const [, length] = await socket.read(2);
  expect((await socket.read(length!))[1]).toBe(0);
  const payload = Buffer.alloc(packetBytesMax, 0x20);
  socket.send(frame(publishBytes({ topic: telemetry, qos: 1, messageId: 1, properties: properties(), payload })));
  const [type, , code] = await socket.read(3);
  expect([type, code]).toEqual([packetType.disconnect << 4, 0x95]);
  expect((await socket.closed()).code).toBe(1000);
});

test('a message above its cap ends the connection before it is whole', async () => {
  const { client: socket } = await connected();
  const whole = frame(Buffer.alloc(messageBytesMax + 1));
  socket.send(whole.subarray(0, 100_000));
  await socket.closed();
});

test('bytes that are no MQTT end the connection', async () => {
  const socket = await open();
  socket.send(frame(Buffer.from(`GET / HTTP/1.1\r\nUser-Agent: ${'x'.repeat(100)}\r\n\r\n`)));
  await socket.closed();
});

test('a client that vanishes without DISCONNECT leaves the others alone', async () => {
  const device = await newDevice();
  const url = `ws://127.0.0.1:${sharedEngine().address.port}/mqtt`;
  const healthy = await connectAsync(url, { protocolVersion: 5, username: device.token, reconnectPeriod: 0 }, false);
  const { client: socket } = await connected();
  socket.send(frame(publish(1, '{"half":').subarray(0, 10), opcode.binary, false));
  socket.socket.resetAndDestroy();
  await healthy.publishAsync(telemetry, '{"healthy":1}', { qos: 1 });
  expect(await storedValues(device, 'healthy')).toEqual(['1']);
  await healthy.endAsync();
});

test('a client that logs in, publishes and leaves in one segment has published', async () => {
  const device = await newDevice();
  const socket = await open();
  const goodbye = frame(Buffer.from([0xe0, 0]));
  const close = frame(Buffer.from([0x03, 0xe8]), opcode.close);
  const login = connectBytes({ username: device.token, clientId: 'raw' });
  socket.send(frame(login), frame(publish(1, '{"breath":1}')), goodbye, close);
  expect(await storedValues(device, 'breath')).toEqual(['1']);
});

test('clients that send no CONNECT are bounded, and take no place from a client that does', async () => {
  const { client: connectedBefore, device } = await connected();
  const workers = 2;
  const most = unnamedSocketsMax(messageBytesMax);
  const strangers: RawWebSocket[] = [];
  // They have an address of their own, because clients of their address would be closed before others.
  while (strangers.length <= workers * most) {
    const { port } = sharedEngine().address;
    const opened = Array.from({ length: 50 }, () =>
      RawWebSocket.open(port, 'mqtt', '/mqtt', '127.0.0.1', '127.0.0.77'),
    );
    strangers.push(...(await Promise.all(opened)));
  }
  try {
    for (const stranger of strangers) stranger.send(frame(Buffer.alloc(100), opcode.binary, false));
    await vi.waitFor(() => {
      expect(strangers.filter(({ isOpen }) => isOpen).length).toBeLessThanOrEqual(workers * most);
    }, 6_000);
    connectedBefore.send(frame(publish(7, '{"beside":1}')));
    expect([...(await connectedBefore.read(4))]).toEqual(puback(7));
    const late = await open();
    late.send(frame(connectBytes({ username: device.token, clientId: 'late' })));
    expect([...(await late.read(4))]).toEqual([0x20, 2, 0, 0]);
  } finally {
    for (const stranger of strangers) stranger.close();
    connectedBefore.close();
  }
});
