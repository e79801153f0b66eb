/** Streams of MQTT packets as a device sends them, and the ways in which they break. All from a seed. */
import { generate, type Packet } from 'mqtt-packet';
import type { Random } from '../test/harness/random.ts';
import { byteMutations, changed, type Mutation, mutate } from './bytes.ts';

/** MQTT 3.1, 3.1.1 or 5. */
export const levels = [3, 4, 5] as const;
type Level = (typeof levels)[number];

const topics = [
  'v1/devices/me/telemetry',
  'v1/devices/me/attributes',
  'v1/devices/me/attributes/request/1',
  'v1/devices/me/rpc/request/1',
  'v1/devices/me/rpc/response/1',
  'v1/devices/me/claim',
  'v2/t',
  'v2/a',
  'v2/fw/request/1/chunk/0',
  'v1/gateway/telemetry',
  'v1/gateway/connect',
  'v1/gateway/attributes/request',
  'v1/gateway/rpc',
  '/provision/request',
  'nobody/knows',
];

const bodies = [
  '{"fuzz":1}',
  '{"ts":1700000000000,"values":{"fuzz":"text","more":[1,2,{"a":null}]}}',
  '[{"fuzz":true},{"fuzz":1.5}]',
  '{"clientKeys":"a,b","sharedKeys":"c"}',
  '{"method":"getSessionLimits","params":{}}',
  '{"device":"child"}',
  '{"child":[{"ts":1,"values":{"fuzz":1}}]}',
  '{"id":1,"device":"child","client":["a"]}',
  '100',
  '',
  'not JSON',
];

/** CONNECT and some packets that a client may send, each as bytes. */
function validStream(random: Random, level: Level, token: string): Buffer[] {
  const connect: Packet = {
    cmd: 'connect',
    protocolId: level === 3 ? 'MQIsdp' : 'MQTT',
    protocolVersion: level,
    clientId: `fuzz-${random.below(1_000)}`,
    clean: true,
    keepalive: random.below(100),
    username: random.next() < 0.9 ? token : 'provision',
    ...(random.next() < 0.3 && { password: Buffer.from('p') }),
    ...(random.next() < 0.3 && { will: { topic: 'w', payload: Buffer.from('x'), qos: 1 as const } }),
    ...(level === 5 && {
      properties: { receiveMaximum: 1 + random.below(10), maximumPacketSize: 20 + random.below(9_999) },
    }),
  };
  const packets = [connect, ...Array.from({ length: 1 + random.below(12) }, () => anyPacket(random, level))];
  return packets.map((packet) => generate(packet, { protocolVersion: level }));
}

function anyPacket(random: Random, level: Level): Packet {
  const messageId = 1 + random.below(20);
  const qos = random.below(3) as 0 | 1 | 2;
  switch (random.below(10)) {
    case 0:
      return { cmd: 'pingreq' };
    case 1:
      return {
        cmd: 'subscribe',
        messageId,
        subscriptions: [
          { topic: 'v1/devices/me/attributes', qos: 1 },
          { topic: random.pick(topics), qos },
        ],
      };
    case 2:
      return { cmd: 'unsubscribe', messageId, unsubscriptions: [random.pick(topics)] };
    case 3:
      return { cmd: random.pick(['puback', 'pubrel', 'pubrec', 'pubcomp'] as const), messageId };
    case 4:
      return random.next() < 0.2 ? { cmd: 'disconnect' } : { cmd: 'pingreq' };
    default:
      return {
        cmd: 'publish',
        topic: random.pick(topics),
        payload: random.pick(bodies),
        qos,
        retain: random.next() < 0.1,
        dup: qos > 0 && random.next() < 0.1,
        ...(qos > 0 && { messageId }),
        ...(level === 5 &&
          random.next() < 0.3 && { properties: { messageExpiryInterval: 5, userProperties: { a: 'b' } } }),
      };
  }
}

const mqttMutations: Mutation[] = [
  ...byteMutations,
  // Sets one byte to any value, mostly in the header and just after it.
  (random, packets) =>
    changed(random, packets, (packet) => {
      const value = random.pick([0, 1, 0x7f, 0x80, 0xff, random.below(256)]);
      if (packet.length > 0) packet[random.below(Math.min(packet.length, 8))] = value;
      return packet;
    }),
  // A wrong length.
  (random, packets) =>
    changed(random, packets, (packet) => {
      const length = random.pick([[0], [1], [0x7f], [0x80, 0], [0xff, 0xff, 0xff, 0x7f], [0xff, 0xff, 0xff, 0xff, 1]]);
      return Buffer.concat([packet.subarray(0, 1), Buffer.from(length), packet.subarray(2)]);
    }),
  // The same packets again and again.
  (random, packets) => Array.from({ length: 50 }, (_, n) => (n === 0 ? packets[0]! : random.pick(packets.slice(-2)))),
];

export function brokenStream(random: Random, level: Level, token: string): Buffer {
  return mutate(random, validStream(random, level, token), mqttMutations);
}
