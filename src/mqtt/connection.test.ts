/** The rules of one connection, over a transport in memory, with a clock that moves only by hand. */

import { brotliCompressSync, gzipSync } from 'node:zlib';
import {
  generate,
  type IConnectPacket,
  type IPubackPacket,
  type IPublishPacket,
  type Packet,
  parser,
} from 'mqtt-packet';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { silentLog as quiet } from '../../test/harness/silent-log.ts';
import { newTroubles } from '../../test/harness/troubles.ts';
import { unlimitedAdmission, unlimitedRates } from '../../test/harness/unlimited.ts';
import { badRequest, Fault, notFound, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { block } from '../base/running-work.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { topicsOf } from '../device/model/profile-topics.ts';
import { Connection } from './connection.ts';
import type { ConnectionDeps } from './deps.ts';
import { Addresses } from './flow/addresses.ts';
import { Counters } from './flow/counters.ts';
import { JournalWaiters } from './flow/journal-waiters.ts';
import { PacketRoom } from './flow/packet-room.ts';
import { ReadGate } from './flow/read-gate.ts';
import { TooLargeLog } from './flow/too-large-log.ts';
import { Flusher } from './outgoing/flusher.ts';
import { Outbox } from './outgoing/outbox.ts';
import { giveBack, type Incoming, takeIncoming } from './session/incoming.ts';
import type { Publish } from './session/operation.ts';
import type { Session } from './session/session.ts';
import { createSignIn } from './sign-in/login.ts';
import type { SignedIn, SignInRefused } from './sign-in/sign-in.ts';
import { TopicTable } from './topics/table.ts';
import type { Transport } from './transport/transport.ts';

const topic = 'v1/devices/me/telemetry';

class MemoryTransport implements Transport {
  readonly remoteAddress = '192.0.2.1';
  bufferedBytes = 0;
  hasEnded = false;
  written: Buffer[] = [];
  paused = false;
  end_ = '';

  write(bytes: Buffer): void {
    this.written.push(Buffer.from(bytes));
  }

  pause(): void {
    this.paused = true;
  }

  resume(): void {
    this.paused = false;
  }

  end(): void {
    this.end_ = 'ended';
  }

  destroy(): void {
    this.end_ = 'destroyed';
  }
}

interface Bench {
  connection: Connection;
  transport: MemoryTransport;
  /** Publishes that wait for their answer. */
  publishes: Publish[];
  packetRoom: PacketRoom;
  session: () => Session;
  /** Returns the packets that were sent since the last call, of level 4 or 5. */
  sent: () => Promise<Packet[]>;
  send: (...packets: Packet[]) => void;
  counters: Metrics;
  move: (ms: number) => void;
  refuse: (fault: Fault | undefined) => void;
  endedBy: () => string;
}

interface BenchOptions {
  level?: 4 | 5;
  connect?: Partial<IConnectPacket>;
  signIn?: () => SignedIn | SignInRefused | Promise<SignedIn | SignInRefused>;
  inflightMax?: number;
  closeOnInvalid?: boolean;
  gatewayBytesMax?: number;
  packetRoom?: PacketRoom;
  log?: Log;
  serverReference?: string;
  onPublish?: (publish: Publish) => void;
}

const signedIn: SignedIn = {
  device: { number: 1, tenantId: 'tenant' } as CachedDevice,
  isGateway: false,
  topics: undefined,
  end() {},
};

function bench({
  level = 4,
  connect = {},
  signIn = () => signedIn,
  inflightMax = 3,
  closeOnInvalid = false,
  gatewayBytesMax = 32_000,
  packetRoom = new PacketRoom(2 * gatewayBytesMax, gatewayBytesMax),
  log = quiet,
  serverReference = '',
  onPublish,
}: BenchOptions = {}): Bench {
  let now = 1_000;
  let refusal: Fault | undefined;
  let session: Session | undefined;
  let endedBy = '';
  const publishes: Publish[] = [];
  const metrics = new Metrics();
  const addresses = new Addresses({ connectionsMax: () => 10, provisioningMax: 2, isTrusted: () => false });
  const deps: ConnectionDeps = {
    settings: {
      worker: '',
      serverReference,
      connectionsPerAddressMax: () => 10,
      packetBytesMax: 4096,
      inflightMax,
      gateway: { packetBytesMax: gatewayBytesMax, inflightMax },
      idleMs: 600_000,
      closeOnInvalid,
    },
    signIn,
    isTrustedProxy: () => false,
    topics: new TopicTable([
      {
        exact: {
          [topic]: (publish) => {
            if (refusal) throw refusal;
            onPublish?.(publish);
            publishes.push(publish);
          },
        },
      },
    ]),
    provisionTopics: new TopicTable([]),
    streams: {},
    onSession: (opened) => {
      session = opened;
      opened.onEnd((reason) => {
        endedBy = reason;
      });
    },
    admission: unlimitedAdmission(),
    troubles: newTroubles({ now: () => now, monotonic: () => now }),
    journalRefusal: () => refusal,
    clock: { now: () => now, monotonic: () => now },
    log,
    packetRoom,
    tooLargeLog: new TooLargeLog({ now: () => now, monotonic: () => now }, log),
    counters: new Counters(metrics),
    flusher: new Flusher(),
    journalWaiters: new JournalWaiters({ now: () => now, monotonic: () => now }, () => refusal),
    addresses,
    provisioningCaps: { packetBytesMax: 1024, inflightMax: 2 },
    left: () => {},
  };
  const transport = new MemoryTransport();
  addresses.enter(transport.remoteAddress);
  const connection = new Connection(deps, transport, undefined);
  const send = (...packets: Packet[]) =>
    connection.onData(Buffer.concat(packets.map((packet) => generate(packet, { protocolVersion: level }))));
  send({
    cmd: 'connect',
    protocolId: 'MQTT',
    protocolVersion: level,
    clientId: 'c',
    username: 'token',
    clean: true,
    keepalive: 10,
    ...connect,
  });
  return {
    connection,
    transport,
    publishes,
    packetRoom,
    session: () => session!,
    sent: async () => {
      await new Promise((resolve) => setImmediate(resolve));
      const reader = parser({ protocolVersion: level });
      const packets: Packet[] = [];
      reader.on('packet', (packet) => packets.push(packet));
      for (const bytes of transport.written.splice(0)) reader.parse(bytes);
      return packets;
    },
    send,
    counters: metrics,
    move: (ms) => {
      now += ms;
      deps.journalWaiters.round();
      connection.sweep(now);
    },
    refuse: (fault) => {
      refusal = fault;
    },
    endedBy: () => endedBy,
  };
}

function publish(messageId: number, qos: 0 | 1 | 2 = 1): Packet {
  return { cmd: 'publish', topic, payload: `{"n":${messageId}}`, qos, dup: false, retain: false, messageId };
}

function names(packets: Packet[]): string[] {
  return packets.map(({ cmd, messageId }) => (messageId === undefined ? cmd : `${cmd} ${messageId}`));
}

describe('acknowledgements', () => {
  test('leave in order of arrival, all that may in one write', async () => {
    const { send, sent, publishes, transport } = bench();
    await sent();
    send(publish(1), publish(2), publish(3));
    publishes[1]!.acknowledge();
    publishes[2]!.acknowledge();
    expect(await sent()).toEqual([]);
    publishes[0]!.acknowledge();
    await new Promise((resolve) => setImmediate(resolve));
    expect(transport.written).toHaveLength(1);
    expect(names(await sent())).toEqual(['puback 1', 'puback 2', 'puback 3']);
  });

  test('a refusal has its code and its reason', async () => {
    const { send, sent, publishes } = bench({ level: 5 });
    await sent();
    send(publish(1));
    publishes[0]!.refuse(badRequest('wrong_shape', 'The payload is wrong.'));
    const [puback] = await sent();
    expect(puback).toMatchObject({
      cmd: 'puback',
      reasonCode: 0x99,
      properties: { reasonString: 'The payload is wrong.' },
    });
  });

  test('no Reason String for a client that wants none, or has no room for it', async () => {
    const terse = bench({ level: 5, connect: { properties: { requestProblemInformation: false } } });
    const small = bench({ level: 5, connect: { properties: { maximumPacketSize: 20 } } });
    for (const { send, sent, publishes } of [terse, small]) {
      await sent();
      send(publish(1));
      publishes[0]!.refuse(badRequest('wrong_shape', 'The payload is wrong.'));
      const [puback] = await sent();
      expect(puback).toMatchObject({ cmd: 'puback', reasonCode: 0x99 });
      expect((puback as { properties?: object }).properties).toBeUndefined();
    }
  });

  test('MQTT 3 is acknowledged what it would only send again', async () => {
    const { send, sent, publishes, transport } = bench();
    await sent();
    send(publish(1));
    publishes[0]!.refuse(badRequest('wrong_shape', 'The payload is wrong.'));
    expect(names(await sent())).toEqual(['puback 1']);
    expect(transport.end_).toBe('');
  });

  test('MQTT 3 keeps what may succeed later: no acknowledgement, and the connection ends', async () => {
    const { send, sent, publishes, transport, endedBy } = bench();
    await sent();
    send(publish(1), publish(2));
    publishes[0]!.refuse(unavailable('bus_away', 'Come back.'));
    expect(await sent()).toEqual([]);
    expect(transport.end_).toBe('ended');
    expect(endedBy()).toBe('server_fault');
    // The other answer arrives after the end of the connection, which is no error.
    publishes[1]!.acknowledge();
  });

  test('MQTT 3 gets past late rows that are refused: later messages are acknowledged, and the end comes after a while', async () => {
    const refusals = [
      unavailable('stream_late', 'The stream of late rows is full.'),
      new Fault('stream_late_share', 'This device has its share of the stream of late rows.'),
    ];
    for (const [refusal, qos] of refusals.flatMap((each) => [[each, 1] as const, [each, 2] as const])) {
      const { send, sent, publishes, transport, endedBy, move, connection } = bench();
      await sent();
      for (let n = 1; n <= 12; n += 1) {
        // More messages than may be unacknowledged at once; every third one is of late rows.
        send(publish(n, qos));
        if (n % 3 === 1) publishes[n - 1]!.refuse(refusal);
        else publishes[n - 1]!.acknowledge();
        const answer = qos === 1 ? 'puback' : 'pubrec';
        expect(names(await sent())).toEqual(n % 3 === 1 ? [] : [`${answer} ${n}`]);
        if (qos === 2 && n % 3 !== 1) send({ cmd: 'pubrel', messageId: n });
        await sent();
      }
      move(500);
      send({ cmd: 'pingreq' });
      move(limits.mqttPausedMsMax - 1);
      expect(transport.end_).toBe('');
      move(1);
      expect(transport.end_).toBe('ended');
      expect(endedBy()).toBe('server_fault');
      expect(connection.reach).toBe('closed');
    }
  });

  test('mqtt.closeOnInvalid ends an MQTT 3 connection without an acknowledgement', async () => {
    const { send, sent, publishes, endedBy } = bench({ closeOnInvalid: true });
    await sent();
    send(publish(1));
    publishes[0]!.refuse(badRequest('wrong_shape', 'The payload is wrong.'));
    expect(await sent()).toEqual([]);
    expect(endedBy()).toBe('invalid_message');
  });

  test('unless the profile of the device has such messages acknowledged', async () => {
    const topics = topicsOf({ type: 'MQTT', sendAckOnValidationException: true });
    const { send, sent, publishes, endedBy } = bench({ closeOnInvalid: true, signIn: () => ({ ...signedIn, topics }) });
    await sent();
    send(publish(1));
    publishes[0]!.refuse(badRequest('wrong_shape', 'The payload is wrong.'));
    expect([names(await sent()), endedBy()]).toEqual([['puback 1'], '']);
  });

  test('an answer after the end is no error', () => {
    const { send, publishes, connection } = bench();
    send(publish(1), publish(2, 0), { cmd: 'disconnect' });
    publishes[0]!.acknowledge();
    publishes[1]!.acknowledge();
    connection.onClosed();
  });
});

describe('the time of a message', () => {
  test('is that of the read that received its last byte', () => {
    const { send, publishes, connection, move } = bench({ inflightMax: 9 });
    send(publish(1), publish(2));
    move(7);
    const bytes = generate(publish(3));
    connection.onData(bytes.subarray(0, 10));
    move(5);
    connection.onData(bytes.subarray(10));
    expect(publishes.map(({ readAt }) => readAt)).toEqual([1_000, 1_000, 1_012]);
  });

  test('is that of the later read when the message waited for the journal', () => {
    const { send, publishes, refuse, move } = bench();
    refuse(unavailable('journal_slow', 'Come back.'));
    send(publish(1), publish(2));
    move(40);
    expect(publishes).toEqual([]);
    refuse(undefined);
    move(60);
    expect(publishes.map(({ readAt }) => readAt)).toEqual([1_100, 1_100]);
  });

  test('is that of the later read when the message waited for answers to earlier ones', async () => {
    const times: number[] = [];
    const onPublish = ({ readAt }: Publish) => times.push(readAt);
    const { send, sent, publishes, move } = bench({ inflightMax: 1, onPublish });
    await sent();
    send(publish(1), publish(2));
    move(30);
    publishes[0]!.acknowledge();
    await sent();
    expect(times).toEqual([1_000, 1_030]);
  });
});

describe('flow control', () => {
  test('MQTT 5: one message more than the Receive Maximum is 0x93', async () => {
    const { send, sent, publishes } = bench({ level: 5 });
    await sent();
    send(publish(1), publish(2), publish(3), publish(4));
    expect(publishes).toHaveLength(3);
    expect(await sent()).toMatchObject([{ cmd: 'disconnect', reasonCode: 0x93 }]);
  });

  test('MQTT 3: is not read any more until answers have left', async () => {
    const { send, sent, publishes, transport } = bench();
    await sent();
    send(publish(1), publish(2), publish(3), publish(4), publish(5));
    expect(publishes).toHaveLength(3);
    expect(transport.paused).toBe(true);
    for (const waiting of publishes.splice(0)) waiting.acknowledge();
    expect(names(await sent())).toEqual(['puback 1', 'puback 2', 'puback 3']);
    expect(publishes).toHaveLength(2);
    expect(transport.paused).toBe(false);
  });

  test('QoS 0 that is not answered yet stops the reading as well', async () => {
    const { send, sent, publishes, transport } = bench({ level: 5 });
    await sent();
    send(publish(1, 0), publish(2, 0), publish(3, 0), publish(4, 0));
    expect(publishes).toHaveLength(3);
    publishes[0]!.acknowledge();
    expect(publishes).toHaveLength(4);
    publishes[1]!.acknowledge();
    expect(transport.paused).toBe(false);
  });

  test('QoS 2 counts until PUBCOMP, and a repeated PUBLISH is not taken twice', async () => {
    const { send, sent, publishes } = bench({ level: 5 });
    await sent();
    send(publish(7, 2));
    publishes[0]!.acknowledge();
    expect(names(await sent())).toEqual(['pubrec 7']);
    send({ ...publish(7, 2), dup: true } as Packet);
    expect(names(await sent())).toEqual(['pubrec 7']);
    expect(publishes).toHaveLength(1);
    send(publish(8), publish(9));
    send({ cmd: 'pubrel', messageId: 7 }, publish(10));
    expect(names(await sent())).toEqual(['pubcomp 7']);
    expect(publishes).toHaveLength(4);
  });

  test("the client's Receive Maximum: more pushes wait for its PUBACK", async () => {
    const { send, sent, session } = bench({ level: 5, connect: { properties: { receiveMaximum: 2 } } });
    await sent();
    const confirmed: string[] = [];
    for (const n of [1, 2, 3]) session().push('v2/a', `${n}`, 1, (delivered) => confirmed.push(`${n} ${delivered}`));
    expect(names(await sent())).toEqual(['publish 1', 'publish 2']);
    send({ cmd: 'puback', messageId: 1 });
    expect(names(await sent())).toEqual(['publish 3']);
    session().close('taken_over');
    expect(confirmed).toEqual(['1 true', '2 false', '3 false']);
  });

  test('a client that has left while its messages wait is gone before its session ends', async () => {
    const { connection, send, sent, session, publishes } = bench();
    await sent();
    expect(session().isGone).toBe(false);
    send(publish(1), publish(2), publish(3));
    connection.onClosed();
    expect([session().isGone, session().endedBy]).toEqual([true, undefined]);
    expect(session().push('v2/a', 'x', 1, () => expect.unreachable())).toBe(false);
    for (const each of publishes) each.acknowledge();
    await sent();
    expect(session().endedBy).toBe('connection_lost');
  });

  test('a message to a client that ends the connection before the message is written is not delivered', async () => {
    const { sent, session, transport } = bench();
    await sent();
    const outcomes: boolean[] = [];
    const push = () => session().push('v2/a', 'x', 0, (delivered) => outcomes.push(delivered));
    push();
    await sent();
    push();
    transport.hasEnded = true;
    await sent();
    expect(outcomes).toEqual([true, false]);
    // The event of the close comes in a later turn of the loop: a message that was offered again would not wait for it.
    expect([session().isGone, session().endedBy]).toEqual([true, undefined]);
    expect(push()).toBe(false);
  });

  test("above the client's Maximum Packet Size nothing is pushed", async () => {
    const { sent, session } = bench({ level: 5, connect: { properties: { maximumPacketSize: 30 } } });
    await sent();
    expect(session().push('v2/a', 'x'.repeat(100), 1, () => expect.unreachable())).toBe(false);
    expect(session().push('v2/a', 'x', 1)).toBe(true);
    expect(names(await sent())).toEqual(['publish 1']);
  });

  test('a client that leaves large messages unread is closed when its share of the room for them is used up', async () => {
    const size = 20 * 1024 * 1024;
    const payload = Buffer.alloc(size);
    for (let n = 0; n < 2; n += 1) {
      const { sent, session, transport, endedBy } = bench();
      await sent();
      session().push(topic, payload, 0);
      transport.bufferedBytes = size;
      await new Promise((resolve) => setImmediate(resolve));
      // The memory of the first client is free again.
      expect([endedBy(), transport.paused]).toEqual(['', true]);
      session().push(topic, payload, 0);
      transport.bufferedBytes = 2 * size;
      await new Promise((resolve) => setImmediate(resolve));
      expect([endedBy(), transport.end_]).toEqual(['slow_reader', 'destroyed']);
    }
  });

  test('a client that does not read is not read either, then closed', async () => {
    const { send, sent, publishes, transport, endedBy, move } = bench();
    await sent();
    transport.bufferedBytes = limits.mqttUnreadBytesPause + 1;
    send(publish(1));
    publishes[0]!.acknowledge();
    await sent();
    expect(transport.paused).toBe(true);
    move(limits.mqttStallMsMax + 1);
    transport.bufferedBytes -= 1;
    move(limits.mqttStallMsMax);
    expect(endedBy()).toBe('');
    move(limits.mqttStallMsMax + 1);
    expect(endedBy()).toBe('slow_reader');
    expect(transport.end_).toBe('destroyed');
  });
});

describe('the journal refuses', () => {
  const slow = unavailable('journal_slow', 'Too slow.');
  const discarded = (metrics: Metrics) =>
    metrics
      .snapshot()
      .filter(({ name }) => name === 'mqtt_discarded_total')
      .map(({ labels, value }) => `${labels} ${value}`);

  for (const level of [4, 5] as const) {
    for (const qos of [0, 1, 2] as const) {
      test(`MQTT ${level}, QoS ${qos}: is not read until the journal takes again; then nothing is lost`, async () => {
        const { send, sent, refuse, publishes, transport, move, counters, endedBy } = bench({ level });
        await sent();
        send(publish(1, qos));
        refuse(slow);
        send(publish(2, qos), publish(3, qos));
        expect(transport.paused).toBe(true);
        move(1_000);
        move(1_000);
        expect(publishes).toHaveLength(1);
        expect(await sent()).toEqual([]);
        refuse(undefined);
        move(100);
        expect(publishes).toHaveLength(3);
        const word = qos === 1 ? 'puback' : 'pubrec';
        for (const waiting of publishes) waiting.acknowledge();
        expect(names(await sent())).toEqual(qos === 0 ? [] : [1, 2, 3].map((id) => `${word} ${id}`));
        expect(transport.paused).toBe(false);
        expect(discarded(counters)).toEqual([]);
        expect(endedBy()).toBe('');
      });
    }

    test(`MQTT ${level}, QoS 0: after the wait messages are discarded and counted, the connection stays`, async () => {
      const { send, sent, refuse, publishes, transport, move, counters, endedBy } = bench({ level, inflightMax: 100 });
      await sent();
      refuse(slow);
      send(publish(1, 0), publish(2, 0));
      move(limits.mqttPausedMsMax + 1);
      // The next message does not have to wait again.
      send(publish(3, 0), { cmd: 'pingreq' });
      expect(names(await sent())).toEqual(['pingresp']);
      expect(discarded(counters)).toEqual(['{reason="journal_slow",qos="0"} 3']);
      refuse(undefined);
      move(500);
      refuse(slow);
      send(publish(4, 0));
      expect(transport.paused).toBe(true);
      refuse(undefined);
      move(100);
      expect(publishes).toHaveLength(1);
      expect(endedBy()).toBe('');
    });

    test(`MQTT ${level}: Keep Alive does not run while the client is not read`, async () => {
      const { send, sent, refuse, publishes, move, endedBy } = bench({ level, connect: { keepalive: 60 } });
      await sent();
      move(89_000);
      refuse(slow);
      send(publish(1, 0));
      move(4_000);
      refuse(undefined);
      move(100);
      expect(publishes).toHaveLength(1);
      move(85_000);
      expect(endedBy()).toBe('');
    });
  }

  test('MQTT 5 gets 0x97 after the wait, and stays', async () => {
    const { send, sent, refuse, move, counters, endedBy } = bench({ level: 5 });
    await sent();
    refuse(slow);
    send(publish(1), publish(2));
    move(limits.mqttPausedMsMax);
    expect(await sent()).toEqual([]);
    move(1);
    expect(await sent()).toMatchObject([
      { cmd: 'puback', messageId: 1, reasonCode: 0x97 },
      { cmd: 'puback', messageId: 2, reasonCode: 0x97 },
    ]);
    expect(discarded(counters)).toEqual([]);
    expect(endedBy()).toBe('');
  });

  test('MQTT 3 is closed without an acknowledgement after the wait; its QoS 0 is counted as discarded', async () => {
    const { send, sent, refuse, endedBy, move, counters } = bench();
    await sent();
    refuse(slow);
    send(publish(1), publish(2, 0), publish(3));
    move(limits.mqttPausedMsMax + 1);
    expect(await sent()).toEqual([]);
    expect(endedBy()).toBe('journal_refused');
    expect(discarded(counters)).toEqual(['{reason="journal_refused",qos="0"} 1']);
  });

  test('a client waits for at most half its Keep Alive', async () => {
    const { send, sent, refuse, move } = bench({ level: 5, connect: { keepalive: 4 } });
    await sent();
    refuse(slow);
    send(publish(1));
    move(2_001);
    expect(await sent()).toMatchObject([{ cmd: 'puback', reasonCode: 0x97 }]);
  });

  test('a transport that can keep no more ends the wait, not the connection', async () => {
    const { connection, send, sent, refuse, endedBy } = bench({ level: 5 });
    await sent();
    refuse(slow);
    send(publish(1));
    connection.onOverflow();
    expect(await sent()).toMatchObject([{ cmd: 'puback', reasonCode: 0x97 }]);
    expect(endedBy()).toBe('');
  });

  test('QoS 0 that the journal has and ClickHouse has not yet is no discarded message', async () => {
    const { send, sent, publishes, counters } = bench({ level: 5 });
    await sent();
    send(publish(1, 0), publish(2, 0), publish(3));
    publishes[0]!.refuse(unavailable('store_slow', 'Stored later.'));
    publishes[1]!.refuse(unavailable('journal_failed', 'The disk failed.'));
    publishes[2]!.refuse(unavailable('store_slow', 'Stored later.'));
    expect(await sent()).toMatchObject([{ cmd: 'puback', messageId: 3, reasonCode: 0x97 }]);
    expect(discarded(counters)).toEqual(['{reason="journal_failed",qos="0"} 1']);
  });

  test('a message that waits is distinguished from one that can never be stored', async () => {
    const { send, sent, refuse } = bench({ level: 5 });
    await sent();
    refuse(unavailable('clock_wrong', 'The clock is wrong.'));
    send(publish(1));
    expect(await sent()).toMatchObject([{ cmd: 'puback', reasonCode: 0x97 }]);
  });
});

describe('time', () => {
  test('nothing for one and a half Keep Alives', async () => {
    const { sent, send, move, endedBy } = bench({ level: 5 });
    await sent();
    move(14_999);
    send({ cmd: 'pingreq' });
    move(14_999);
    expect(endedBy()).toBe('');
    move(2);
    expect(endedBy()).toBe('keep_alive');
    expect(names(await sent())).toEqual(['pingresp', 'disconnect']);
  });

  test('silence while this process did not run is not the silence of the client', async () => {
    const { connection, sent, move, endedBy } = bench();
    await sent();
    move(14_000);
    connection.sweep(1_000 + 14_000 + 60_000, 60_000);
    expect(endedBy()).toBe('');
    connection.sweep(1_000 + 14_000 + 60_000 + 1_001);
    expect(endedBy()).toBe('keep_alive');
  });

  test('without Keep Alive, the idle rule', () => {
    const { move, endedBy } = bench({ connect: { keepalive: 0 } });
    move(600_000);
    expect(endedBy()).toBe('');
    move(1);
    expect(endedBy()).toBe('idle');
  });

  test('a connection that is not read is not silent', async () => {
    const { send, sent, publishes, move, endedBy } = bench();
    await sent();
    send(publish(1), publish(2), publish(3), publish(4));
    move(60_000);
    expect(endedBy()).toBe('');
    for (const waiting of publishes.splice(0)) waiting.acknowledge();
    await sent();
    move(10_000);
    expect(endedBy()).toBe('');
  });
});

describe('signing in', () => {
  test('packets after CONNECT wait for its answer', async () => {
    let answer: (outcome: SignedIn | SignInRefused) => void = () => {};
    const { send, sent, publishes, transport } = bench({ signIn: () => new Promise((resolve) => (answer = resolve)) });
    send(publish(1));
    expect(transport.paused).toBe(true);
    expect(await sent()).toEqual([]);
    answer(signedIn);
    expect(names(await sent())).toEqual(['connack']);
    expect(publishes).toHaveLength(1);
    expect(transport.paused).toBe(false);
  });

  test('nothing after a refused CONNECT is handled', async () => {
    const { send, sent, publishes, transport } = bench({ signIn: async () => ({ refused: 'credentials' }) });
    send(publish(1));
    expect(await sent()).toMatchObject([{ cmd: 'connack', returnCode: 5 }]);
    expect(publishes).toEqual([]);
    expect(transport.end_).toBe('ended');
  });

  test('packets that a client sent before it disconnected are handled', async () => {
    let answer: (outcome: SignedIn) => void = () => {};
    const { connection, send, sent, publishes, endedBy } = bench({
      signIn: () => new Promise((resolve) => (answer = resolve)),
    });
    send(publish(1, 0), { cmd: 'disconnect' });
    connection.onClosed();
    answer(signedIn);
    await sent();
    expect(publishes).toHaveLength(1);
    expect(endedBy()).toBe('client_disconnect');
  });

  test('a client that disconnected meanwhile leaves no state', async () => {
    let isEnded = false;
    let answer: (outcome: SignedIn) => void = () => {};
    const { connection, sent } = bench({ signIn: () => new Promise((resolve) => (answer = resolve)) });
    connection.onClosed();
    answer({ ...signedIn, end: () => (isEnded = true) });
    expect(await sent()).toEqual([]);
    expect(isEnded).toBe(true);
  });
});

test('draining: what was read is answered, nothing more is read, then 0x8B', async () => {
  const { connection, send, sent, publishes } = bench({ level: 5 });
  await sent();
  send(publish(1));
  expect(connection.drain('server_shutdown')).toBe(false);
  send(publish(2));
  expect(publishes).toHaveLength(1);
  publishes[0]!.acknowledge();
  expect(names(await sent())).toEqual(['puback 1']);
  expect(connection.drain('server_shutdown')).toBe(true);
  connection.close('server_shutdown');
  expect(await sent()).toMatchObject([{ cmd: 'disconnect', reasonCode: 0x8b }]);
});

test.each([4, 5] as const)('MQTT %i: draining waits for the PUBREC of a message, and for no PUBREL', async (level) => {
  const { connection, send, sent, publishes } = bench({ level });
  await sent();
  send(publish(1, 2));
  expect(connection.drain('server_shutdown')).toBe(false);
  publishes[0]!.acknowledge();
  expect(connection.drain('server_shutdown')).toBe(false);
  expect(names(await sent())).toEqual(['pubrec 1']);
  expect(connection.drain('server_shutdown')).toBe(true);
});

test('a connection that still signs in ends for the reason of the drain', async () => {
  for (const reason of ['handed_over', 'server_shutdown'] as const) {
    const { connection, counters } = bench({ signIn: () => new Promise(() => {}) });
    expect(connection.drain(reason)).toBe(true);
    expect(counters.valueOf('mqtt_disconnects_total', { reason })).toBe(1);
  }
});

test.each([
  [200, { serverReference: 'other.example:1883', reasonString: expect.any(String) }],
  [40, { serverReference: 'other.example:1883' }],
  [20, undefined],
])('the DISCONNECT of a handover fits into %i bytes', async (maximumPacketSize, properties) => {
  const { connection, sent } = bench({
    level: 5,
    serverReference: 'other.example:1883',
    connect: { properties: { maximumPacketSize } },
  });
  await sent();
  connection.close('handed_over');
  const [packet] = await sent();
  expect(packet).toMatchObject({ cmd: 'disconnect', reasonCode: 0x9c });
  expect((packet as { properties?: object }).properties).toEqual(properties);
});

describe('a connection without credentials', () => {
  const open = () => bench({ level: 5, connect: { username: 'provision', keepalive: 65_535 }, inflightMax: 9 });

  test('ends a minute after its CONNECT, with any packets', async () => {
    const { send, sent, move, endedBy } = open();
    expect((await sent())[0]).toMatchObject({
      cmd: 'connack',
      reasonCode: 0,
      properties: { maximumPacketSize: 1024, receiveMaximum: 2 },
    });
    for (let seconds = 0; seconds < 60; seconds += 10) {
      expect(endedBy()).toBe('');
      send({ cmd: 'pingreq' });
      move(10_000);
    }
    move(1);
    expect(endedBy()).toBe('provisioned');
  });

  test('may send small packets only', () => {
    const { connection, endedBy } = open();
    connection.onData(Buffer.from([0x30, 0x80, 0x09]));
    expect(endedBy()).toBe('packet_too_large');
  });
});

describe('a large file', () => {
  const sliceBytes = 100_000;
  /** A file of ones; `slices` counts the pieces that were read. */
  function file(bytes: number) {
    const read = { slices: 0, fail: undefined as Fault | undefined };
    const slice = async (at: number) => {
      if (read.fail) throw read.fail;
      read.slices += 1;
      return Buffer.alloc(Math.min(sliceBytes, bytes - at), 1);
    };
    return { read, bytes, slice };
  }
  const settle = async () => {
    for (let n = 0; n < 60; n += 1) await new Promise((resolve) => setImmediate(resolve));
  };

  test('is one PUBLISH after the acknowledgement of its request, and before all other packets', async () => {
    const { send, sent, session, publishes, transport } = bench();
    await sent();
    send(publish(7));
    publishes[0]!.acknowledge();
    let ends = 0;
    const taken = session().sendFile('v2/fw', file(1_000_000), 1, () => {
      ends += 1;
    });
    expect([taken, session().sendFile('v2/fw', file(9), 1, () => {}), transport.paused]).toEqual([
      'taken',
      'busy',
      true,
    ]);
    await new Promise((resolve) => setImmediate(resolve));
    session().push('later', 'x', 0);
    await settle();
    const packets = await sent();
    expect(names(packets)).toEqual(['puback 7', 'publish 1', 'publish']);
    expect((packets[1] as { payload: Buffer }).payload).toEqual(Buffer.alloc(1_000_000, 1));
    expect([ends, transport.paused]).toEqual([1, false]);
  });

  test('waits for the client, without a Keep Alive, and ends it when it reads nothing for a minute', async () => {
    const { session, transport, move, endedBy, sent } = bench({ connect: { keepalive: 1 } });
    await sent();
    const firmware = file(1_000_000);
    session().sendFile('v2/fw', firmware, 0, () => {});
    transport.bufferedBytes = 300_000;
    await settle();
    expect(firmware.read.slices).toBe(0);
    // The client reads some bytes.
    for (let minutes = 0; minutes < 3; minutes += 1) {
      transport.bufferedBytes -= 1;
      move(59_000);
    }
    expect(endedBy()).toBe('');
    transport.bufferedBytes = 0;
    transport.written.length = 0;
    expect(session().endedBy).toBeUndefined();
    transport.bufferedBytes = 300_000;
    move(1_000);
    move(60_001);
    expect([endedBy(), transport.end_]).toEqual(['slow_reader', 'destroyed']);
  });

  test('continues when the client has read, and is cut when it was deleted', async () => {
    const { session, connection, transport, endedBy, sent } = bench();
    await sent();
    const firmware = file(1_000_000);
    let ends = 0;
    session().sendFile('v2/fw', firmware, 0, () => {
      ends += 1;
    });
    transport.bufferedBytes = 300_000;
    await settle();
    transport.bufferedBytes = 0;
    firmware.read.fail = notFound('The package was deleted.');
    connection.onDrained();
    await settle();
    expect([ends, endedBy(), transport.end_]).toEqual([1, 'file_unreadable', 'destroyed']);
  });

  test('is given up at once when the client leaves, and what the client sent before is handled', async () => {
    const { send, session, connection, transport, endedBy, publishes, sent } = bench();
    await sent();
    const firmware = file(1_000_000);
    let ends = 0;
    session().sendFile('v2/fw', firmware, 0, () => {
      ends += 1;
    });
    transport.bufferedBytes = 300_000;
    await settle();
    send(publish(7));
    connection.onClosed();
    await settle();
    expect([ends, endedBy(), firmware.read.slices]).toEqual([1, 'connection_lost', 0]);
    expect(publishes).toHaveLength(1);
  });

  test('that no packet holds, or that the client does not take, is refused', async () => {
    const { session, sent } = bench();
    await sent();
    expect(session().sendFile('v2/fw', file(268_435_449), 0, () => {})).toBe('too_large');
    expect(session().sendFile('v2/fw', file(268_435_448), 0, () => {})).toBe('taken');
    const small = bench({ level: 5, connect: { properties: { maximumPacketSize: 600_000 } } });
    await small.sent();
    expect(small.session().sendFile('v2/fw', file(600_000), 0, () => {})).toBe('too_large');
  });
});

describe('senders whose packets crashed two processes', () => {
  afterEach(() => block([]));

  test('are refused by their address at the first packet', async () => {
    block(['MQTT packets of address 192.0.2.1']);
    const refused = bench();
    expect(await refused.sent()).toEqual([]);
    expect(refused.transport.end_).not.toBe('');
    block(['MQTT packets of address 192.0.2.2', 'MQTT packets of device 192.0.2.1']);
    expect(names(await bench().sent())).toEqual(['connack']);
  });

  test('are refused as devices at their sign-in, from every address', async () => {
    const row = { id: 'a device' };
    const signIn = createSignIn({
      logins: { find: async () => ({ kind: 'accepted', login: { device: row, isGateway: false, topics: undefined } }) },
      sessions: { open: () => ({ device: row, end() {} }) },
      wrongCredentials: undefined,
      rateLimits: unlimitedRates(),
    } as unknown as Parameters<typeof createSignIn>[0]);
    const request = { clientId: '', username: 'token', password: undefined, certificate: undefined };
    const ask = () => signIn({ ...request, remoteAddress: '192.0.2.3' }, { isReset: false, sessionEnded() {} });
    block(['MQTT packets of device a device']);
    expect(await ask()).toMatchObject({ refused: 'unavailable', text: expect.stringContaining('ten minutes') });
    block([]);
    expect(await ask()).toMatchObject({ device: row });
  });

  test('are named by the device once it is signed in', async () => {
    const device = { id: 'a device', number: 1, tenantId: 'tenant' } as CachedDevice;
    const { connection, sent } = bench({ signIn: () => ({ ...signedIn, device }) });
    expect(names(await sent())).toEqual(['connack']);
    expect(connection.describe()).toBe('device a device');
    expect(bench({ signIn: () => ({ refused: 'credentials' }) }).connection.describe()).toBe('address 192.0.2.1');
  });
});

describe('a call that the state of a connection rules out', () => {
  const device = { id: 'a device', number: 1, tenantId: 'tenant' } as CachedDevice;
  const open = async (options: BenchOptions = {}) => {
    const opened = bench({ signIn: () => ({ ...signedIn, device }), ...options });
    await opened.sent();
    return opened;
  };
  const bug = (sentence: RegExp) => new RegExp(`^BUG: .*${sentence.source}.* \\(MQTT packets of device a device\\)$`);

  test('is a bug that names the connection', async () => {
    const { connection } = await open();
    connection.onClosed();
    const nameless = /^BUG: .* \(MQTT packets of address 192\.0\.2\.1\)$/;
    expect(() => connection.onData(Buffer.from([0xc0, 0]))).toThrow(bug(/none after the end/));
    expect(() => connection.onDrained()).toThrow(bug(/has nothing to write/));
    expect(() => connection.onOverflow()).toThrow(bug(/keeps nothing/));
    expect(() => connection.onClosed()).toThrow(bug(/closes once/));
    const early = bench({ signIn: () => new Promise(() => {}) }).connection;
    expect(() => early.push('t', '', 0, undefined)).toThrow(nameless);
  });

  test('is a bug while a packet is read', async () => {
    let failure: unknown;
    const { connection, publishes, send } = await open();
    publishes.push = () => {
      try {
        connection.onClosed();
      } catch (error) {
        failure = error;
      }
      return 0;
    };
    send(publish(1));
    expect(String(failure)).toMatch(/not while packets are read \(MQTT packets of device a device\)$/);
  });

  test('a wait for the journal that has ended, and an answer that is not waited for', async () => {
    const { connection, send, publishes } = await open();
    const clock = { now: () => 0, monotonic: () => 0 };
    const journalWaiters = new JournalWaiters(clock, () => undefined);
    const deps = { clock, journalWaiters, journalRefusal: () => undefined };
    const gate = new ReadGate(deps, { readOn() {}, work: () => connection.work() }, new MemoryTransport(), 1);
    expect(() => gate.journalAccepts()).toThrow(bug(/that waits/));
    expect(() => gate.journalRefuses()).toThrow(bug(/that waits/));
    send(publish(1, 0));
    const [first] = publishes;
    const inbox = (first as Incoming).connection!;
    first!.acknowledge();
    expect(() => first!.acknowledge()).toThrow(/^BUG: an MQTT message is answered once$/);
    expect(() => inbox.answered(first as Incoming, undefined)).toThrow(bug(/waits for the answer/));
    expect(() => giveBack(first as Incoming)).toThrow(/given back once/);
  });
});

describe('an outbox', () => {
  const owner = { work: () => ({ what: 'packets', caller: 'a test' }) };
  const message = (qos: 0 | 1 | 2 = 1) => Object.assign(takeIncoming(), { qos, session: {} as Session, packetId: 7 });

  test('takes nothing after the end of its connection, which comes once', () => {
    const outbox = new Outbox(new MemoryTransport(), owner);
    outbox.drop();
    expect(() => outbox.add(Buffer.alloc(2))).toThrow(/sends nothing \(packets of a test\)/);
    expect(() => outbox.expect(message())).toThrow(/takes no message/);
    expect(() => outbox.drop()).toThrow(/ends once/);
  });

  test('takes back the last message only, and each message once', () => {
    const outbox = new Outbox(new MemoryTransport(), owner);
    const [first, second] = [message(), message()];
    outbox.expect(first);
    outbox.expect(second);
    expect(() => outbox.unexpect(first)).toThrow(/was expected last/);
    outbox.unexpect(second);
    outbox.unexpect(first);
    first.isOpen = false;
    expect(() => outbox.expect(first)).toThrow(/is new/);
  });

  test('shares its buffer with no connection that writes at the same time', () => {
    const transport = new MemoryTransport();
    const outbox = new Outbox(transport, owner);
    let failure: unknown;
    transport.write = () => {
      try {
        outbox.flush(4, 1000);
      } catch (error) {
        failure = error;
      }
    };
    outbox.add(Buffer.from([0xd0, 0]));
    outbox.flush(4, 1000);
    expect(String(failure)).toMatch(/one connection writes at a time/);
  });

  test('has its results before the callbacks of what it wrote, which may flush again', async () => {
    const { connection, send, sent, session, publishes, counters } = bench();
    await sent();
    session().push('v1/devices/me/attributes', '{}', 0, () => {
      publishes[1]!.acknowledge();
      connection.close('server_shutdown');
    });
    send(publish(1), publish(2));
    publishes[0]!.acknowledge();
    expect(names(await sent())).toEqual(['publish', 'puback 1', 'puback 2']);
    const out = counters.snapshot().filter(({ name }) => name === 'mqtt_packets_sent_total');
    expect(out.map(({ value }) => value)).toEqual([4]);
  });
});

test('a connection that ends in the turn of another one does not wait for the journal any more', () => {
  let refusal: Fault | undefined = unavailable('disk_full', 'full');
  const waiters = new JournalWaiters({ now: () => 0, monotonic: () => 0 }, () => refusal);
  const calls: string[] = [];
  const second = { journalAccepts: () => calls.push('second'), journalRefuses() {} };
  const first = {
    journalAccepts() {
      calls.push('first');
      waiters.delete(second);
    },
    journalRefuses() {},
  };
  waiters.add(first);
  waiters.add(second);
  refusal = undefined;
  waiters.round();
  expect(calls).toEqual(['first']);
});

describe('large packets of a gateway', () => {
  const device = { number: 7, tenantId: 'tenant', id: 'gateway', name: 'hub' } as CachedDevice;
  const gateway = { signIn: () => ({ ...signedIn, device, isGateway: true }) };
  const large = (messageId: number, bytes: number): Packet => ({
    ...(publish(messageId) as IPublishPacket),
    payload: Buffer.alloc(bytes, ' '),
  });
  const bytesOf = (packet: Packet) => generate(packet, { protocolVersion: 5 });

  /** Gives the packet to the connection in pieces. */
  function drip({ connection }: Bench, packet: Buffer, pieceBytes: number): void {
    for (let at = 0; at < packet.length; at += pieceBytes) connection.onData(packet.subarray(at, at + pieceBytes));
  }

  test('are kept in room that is released with the answer, however they are cut', async () => {
    for (const pieceBytes of [100_000, 10_000, 1_000, 7]) {
      const packetRoom = new PacketRoom(64_000, 32_000);
      const it = bench({ ...gateway, level: 5, packetRoom });
      expect((await it.sent())[0]).toMatchObject({ properties: { maximumPacketSize: 32_000 } });
      drip(it, Buffer.concat([1, 2, 3].map((id) => bytesOf(id === 2 ? large(2, 20_000) : publish(id)))), pieceBytes);
      expect(it.publishes.map(({ isOwned, payload }) => [isOwned, payload.length])).toEqual([
        [false, 0],
        [true, 0],
        [false, 0],
      ]);
      expect(packetRoom.held).toBeGreaterThanOrEqual(20_000);
      expect(packetRoom.held).toBeLessThan(20_100);
      for (const one of it.publishes) one.acknowledge();
      expect(packetRoom.held).toBe(0);
      expect(names(await it.sent())).toEqual(['puback 1', 'puback 2', 'puback 3']);
    }
  });

  test('above the limit are skipped without memory, up to the largest length that MQTT has', async () => {
    const lines: object[] = [];
    const log = { ...quiet, warn: (event: string, fields: object = {}) => void lines.push({ event, ...fields }) };
    const packetRoom = new PacketRoom(64_000, 32_000);
    const it = bench({ ...gateway, level: 5, packetRoom, log });
    await it.sent();
    const remaining = 268_435_455;
    const head = Buffer.from([0x32, 0xff, 0xff, 0xff, 0x7f, 0, topic.length, ...Buffer.from(topic), 0, 9, 0]);
    it.connection.onData(Buffer.concat([bytesOf(publish(1)), head]));
    const piece = Buffer.alloc(65_536, '"a",');
    const before = process.memoryUsage().arrayBuffers;
    let left = remaining - (head.length - 5);
    for (; left > piece.length; left -= piece.length) it.connection.onData(piece);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(1024 * 1024);
    expect(packetRoom.held).toBe(0);
    it.connection.onData(Buffer.concat([piece.subarray(0, left), bytesOf(publish(2))]));
    for (const one of it.publishes) one.acknowledge();
    expect((await it.sent()).map(({ messageId, ...rest }) => [messageId, (rest as IPubackPacket).reasonCode])).toEqual([
      [1, 0],
      [9, 0x97],
      [2, 0],
    ]);
    const bytes = remaining + 5;
    expect(lines).toEqual([
      { event: 'mqtt_message_too_large', device: 'gateway', name: 'hub', bytes, bytesMax: 32_000, topic },
    ]);
  });

  test('wait for room: the connection is not read, and goes on when there is room', async () => {
    const packetRoom = new PacketRoom(40_000, 32_000);
    const first = bench({ ...gateway, packetRoom });
    const second = bench({ ...gateway, packetRoom });
    first.send(large(1, 28_000));
    second.send(large(1, 28_000), publish(2));
    expect([first.publishes.length, second.publishes.length, packetRoom.waiting]).toEqual([1, 0, 1]);
    expect(second.transport.paused).toBe(true);
    first.publishes[0]!.acknowledge();
    await new Promise((resolve) => setImmediate(resolve));
    expect([second.publishes.length, packetRoom.waiting, second.transport.paused]).toEqual([2, 0, false]);
  });

  test('that find no room in time are refused: MQTT 5 stays, MQTT 3 keeps the message', async () => {
    for (const level of [4, 5] as const) {
      const packetRoom = new PacketRoom(40_000, 32_000);
      const first = bench({ ...gateway, packetRoom, level });
      const second = bench({ ...gateway, packetRoom, level });
      first.send(large(1, 28_000));
      second.send(large(1, 28_000), publish(2));
      await second.sent();
      second.move(limits.mqttPausedMsMax + 1_000);
      expect(packetRoom.waiting).toBe(0);
      const sent = await second.sent();
      if (level === 5) expect(sent).toMatchObject([{ cmd: 'puback', messageId: 1, reasonCode: 0x97 }]);
      else expect([sent, second.endedBy()]).toEqual([[], 'server_fault']);
    }
  });

  test('that stall lose their room, and progress counts as activity', async () => {
    const packetRoom = new PacketRoom(4_000_000, 2_000_000);
    const it = bench({ ...gateway, level: 5, packetRoom, connect: { keepalive: 40 } });
    const packet = bytesOf(large(1, 30_000));
    await it.sent();
    it.connection.onData(packet.subarray(0, 17_000));
    it.move(35_000);
    it.connection.onData(packet.subarray(17_000, 17_100));
    expect(packetRoom.held).toBeGreaterThan(0);
    it.move(20_000);
    expect(it.endedBy()).toBe('');
    it.move(6_000);
    expect(it.endedBy()).toBe('keep_alive');
    expect(packetRoom.held).toBe(0);

    const idle = bench({ ...gateway, level: 5, packetRoom, connect: { keepalive: 0 } });
    await idle.sent();
    idle.connection.onData(packet.subarray(0, 17_000));
    idle.move(limits.mqttLargeStallMsMax - 1);
    expect(packetRoom.held).toBeGreaterThan(0);
    idle.move(2);
    expect(packetRoom.held).toBe(0);
    idle.connection.onData(packet.subarray(17_000));
    expect(await idle.sent()).toMatchObject([{ cmd: 'puback', messageId: 1, reasonCode: 0x97 }]);
  });

  test('wait for the journal like others', async () => {
    const it = bench({ ...gateway, level: 5 });
    await it.sent();
    it.refuse(unavailable('journal_slow', 'Too slow.'));
    it.send(large(1, 20_000), publish(2));
    expect(it.publishes).toHaveLength(0);
    it.refuse(undefined);
    it.move(100);
    expect(it.publishes).toHaveLength(2);
  });

  test('end with their connection, and give their room back', () => {
    for (const end of ['cut', 'while it waits'] as const) {
      const packetRoom = new PacketRoom(40_000, 32_000);
      const other = packetRoom.of({ number: 1, tenantId: 'tenant' }, { hasRoom() {} });
      if (end === 'while it waits') other.grow(30_000);
      const it = bench({ ...gateway, packetRoom });
      const packet = generate(large(1, 28_000), { protocolVersion: 4 });
      it.connection.onData(packet.subarray(0, 20_000));
      it.connection.onClosed();
      expect([it.endedBy(), packetRoom.waiting]).toEqual(['connection_lost', 0]);
      other.release();
      expect(packetRoom.held).toBe(0);
    }
  });

  test('are no exception for devices', async () => {
    const it = bench({ level: 5, signIn: () => ({ ...signedIn, device }) });
    await it.sent();
    it.send(large(1, 5_000));
    expect(it.endedBy()).toBe('packet_too_large');
  });
});

describe('compressed messages', () => {
  const packed = (messageId: number, payload: Buffer, encoding: string | string[]): Packet => ({
    ...(publish(messageId) as IPublishPacket),
    payload,
    properties: { userProperties: { other: 'x', 'Content-Encoding': encoding } },
  });
  const device = { number: 7, tenantId: 'tenant', id: 'gateway', name: 'hub' } as CachedDevice;

  /** Answers of messages with their payloads, in a topic that acknowledges at once. */
  async function answered(packets: Packet[], signIn: () => SignedIn): Promise<{ codes: unknown[]; bodies: string[] }> {
    const bodies: string[] = [];
    const it = bench({
      level: 5,
      signIn,
      inflightMax: 100,
      gatewayBytesMax: 250_000,
      onPublish: ({ payload }) => bodies.push(payload.toString()),
    });
    await it.sent();
    it.send(...packets);
    const codes: unknown[] = [];
    const isAnswered = async () => {
      for (const one of it.publishes.splice(0)) one.acknowledge();
      for (const one of await it.sent()) codes.push([one.messageId, (one as IPubackPacket).reasonCode]);
      expect(codes).toHaveLength(packets.length);
    };
    await vi.waitFor(isAnswered, { timeout: 20_000 });
    expect(it.packetRoom.held).toBe(0);
    return { codes, bodies };
  }

  test('are unpacked, and keep their order, small or large', async () => {
    const large = `"${'l'.repeat(200_000)}"`;
    const packets = [
      packed(1, gzipSync('"one"'), 'gzip'),
      packed(2, gzipSync(large), 'gzip'),
      publish(3),
      packed(4, brotliCompressSync('"four"'), 'br'),
      packed(5, Buffer.from('"five"'), 'identity'),
    ];
    const { codes, bodies } = await answered(packets, () => ({ ...signedIn, device, isGateway: true }));
    expect(codes).toEqual([1, 2, 3, 4, 5].map((id) => [id, 0]));
    expect(bodies).toEqual(['"one"', large, '{"n":3}', '"four"', '"five"']);
  });

  test('that are bombs, damaged or of another encoding are refused, and the connection stays', async () => {
    const bomb = gzipSync(Buffer.alloc(10_000_000));
    const packets = [
      packed(1, gzipSync(Buffer.alloc(4_097)), 'gzip'),
      packed(2, Buffer.from('{"a":1}'), 'gzip'),
      packed(3, gzipSync('{}').subarray(0, 12), 'gzip'),
      packed(4, gzipSync('{}'), 'lzma'),
      packed(5, gzipSync(gzipSync('{}')), ['gzip', 'gzip']),
      publish(6),
    ];
    const ofDevice = await answered(packets, () => signedIn);
    expect(ofDevice.codes).toEqual([...[1, 2, 3, 4, 5].map((id) => [id, 0x99]), [6, 0]]);
    const ofGateway = await answered([packed(1, bomb, 'gzip'), publish(2)], () => ({
      ...signedIn,
      device,
      isGateway: true,
    }));
    expect(ofGateway.codes).toEqual([
      [1, 0x99],
      [2, 0],
    ]);
  });
});
