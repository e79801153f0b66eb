/** Streams of packets as a device sends them, and the ways in which they break. All from a seed. */
import { generate, type Packet } from 'mqtt-packet';
import type { Level } from '../harness/mqtt-client.ts';
import type { Random } from '../harness/random.ts';

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
export function validStream(random: Random, level: Level, token: string): Buffer[] {
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

type Mutation = (random: Random, packets: Buffer[]) => Buffer[];

/** Bytes changed in place; the others keep theirs. */
const changed = (random: Random, packets: Buffer[], change: (packet: Buffer) => Buffer): Buffer[] => {
  const at = random.below(packets.length);
  return packets.map((packet, n) => (n === at ? change(Buffer.from(packet)) : packet));
};

const mutations: Mutation[] = [
  // Bits.
  (random, packets) =>
    changed(random, packets, (packet) => {
      for (let n = 1 + random.below(4); n > 0; n -= 1) packet[random.below(packet.length)]! ^= 1 << random.below(8);
      return packet;
    }),
  // A byte of any value, most of them in the header and what stands first.
  (random, packets) =>
    changed(random, packets, (packet) => {
      packet[random.below(Math.min(packet.length, 8))] = random.pick([0, 1, 0x7f, 0x80, 0xff, random.below(256)]);
      return packet;
    }),
  // Cut short, its header unchanged.
  (random, packets) => changed(random, packets, (packet) => packet.subarray(0, random.below(packet.length))),
  // A length that lies.
  (random, packets) =>
    changed(random, packets, (packet) => {
      const length = random.pick([[0], [1], [0x7f], [0x80, 0], [0xff, 0xff, 0xff, 0x7f], [0xff, 0xff, 0xff, 0xff, 1]]);
      return Buffer.concat([packet.subarray(0, 1), Buffer.from(length), packet.subarray(2)]);
    }),
  // Two halves of two packets.
  (random, packets) =>
    changed(random, packets, (packet) => {
      const other = random.pick(packets);
      return Buffer.concat([
        packet.subarray(0, random.below(packet.length)),
        other.subarray(random.below(other.length)),
      ]);
    }),
  // Bytes in between, of which some are text that is none.
  (random, packets) =>
    changed(random, packets, (packet) => {
      const at = random.below(packet.length);
      const noise = Buffer.from(Array.from({ length: 1 + random.below(40) }, () => random.below(256)));
      return Buffer.concat([packet.subarray(0, at), noise, packet.subarray(at)]);
    }),
  // Any order, so that CONNECT may come late or twice.
  (random, packets) => packets.map(() => random.pick(packets)),
  // The same again and again.
  (random, packets) => Array.from({ length: 50 }, (_, n) => (n === 0 ? packets[0]! : random.pick(packets.slice(-2)))),
];

/** One to three of them; sometimes none at all, because healthy streams must live beside broken ones. */
export function mutate(random: Random, packets: Buffer[]): Buffer {
  let mutated = packets;
  for (let n = random.below(4); n > 0; n -= 1) mutated = random.pick(mutations)(random, mutated);
  const bytes = Buffer.concat(mutated);
  return bytes.length > 0 ? bytes : Buffer.from([random.below(256)]);
}
