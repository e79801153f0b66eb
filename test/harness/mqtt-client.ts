/**
 * An MQTT client that hides nothing: it sends the given bytes and returns what comes back, packet by
 * packet, in order. mqtt-packet is the codec; `mqtt-bytes.ts` makes the packets that a codec would refuse to write.
 *
 *   await withMqtt({ token: device.token }, async (client) => {   // MQTT 5 unless `level` says 3 (3.1) or 4 (3.1.1)
 *     const ack = await client.publish('v1/devices/me/telemetry', '{"t":1}');      // QoS 1, waits for the PUBACK
 *     expect(ack.reasonCode).toBe(0);
 *     expect(await client.subscribe('v1/devices/me/attributes')).toEqual([1]);
 *     const push = await client.message('v1/devices/me/attributes');               // acknowledged at once
 *     client.send(publishBytes({ topic: '#' }));
 *     await client.closedFor(0x81);                                                // DISCONNECT 0x81, then the end
 *   });
 */
import { once } from 'node:events';
import { connect as connectTcp } from 'node:net';
import type { Duplex } from 'node:stream';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import {
  generate,
  type IConnackPacket,
  type IConnectPacket,
  type IPublishPacket,
  type ISubscribePacket,
  type Packet,
  parser,
  type QoS,
} from 'mqtt-packet';
import { expect } from 'vitest';
import { AbandonedError } from './raw.ts';
import { mqttPort } from './shared-engine.ts';

/** 3 is MQTT 3.1, 4 is 3.1.1. */
export type Level = 3 | 4 | 5;
export const levels: Level[] = [3, 4, 5];
export const levelName = { 3: 'MQTT 3.1', 4: 'MQTT 3.1.1', 5: 'MQTT 5' } as const;

type Command = Packet['cmd'];
type PacketOf<C extends Command> = Extract<Packet, { cmd: C }>;
type Granted = number[];

export interface Transport {
  /** The MQTT port of the shared engine by default. */
  port?: number;
  host?: string;
  /** The address of this machine to connect from. */
  localAddress?: string;
  /** Options of the TLS client; absent: plain TCP. */
  tls?: ConnectionOptions;
  /** The protocol level, which decides the form of the packets in both directions; MQTT 5 by default. */
  level?: Level;
}

export interface Login {
  /** Sent as the user name. */
  token?: string;
  username?: string;
  password?: string;
  /** The default is empty; with MQTT 3.1 it is an id, because MQTT 3.1 does not allow an empty one. */
  clientId?: string;
  clean?: boolean;
  keepAlive?: number;
  will?: NonNullable<IConnectPacket['will']>;
  /** MQTT 5 only. */
  properties?: NonNullable<IConnectPacket['properties']>;
}

interface PublishOptions {
  qos?: QoS;
  messageId?: number;
  retain?: boolean;
  dup?: boolean;
  properties?: NonNullable<IPublishPacket['properties']>;
}

const waitMsMaxDefault = 10_000;
let clientsMade = 0;

export class MqttClient {
  readonly stream: Duplex;
  readonly level: Level;
  /** Received packets that no call has taken yet. */
  readonly received: Packet[] = [];
  connack: IConnackPacket | undefined;
  #ended = false;
  #isCut = false;
  #malformed: Error | undefined;
  #nextId = 1;
  #waiters: (() => void)[] = [];

  constructor(stream: Duplex, level: Level = 5) {
    this.stream = stream;
    this.level = level;
    const packets = parser({ protocolVersion: level });
    packets.on('packet', (packet) => {
      this.received.push(packet);
      this.#wake();
    });
    packets.on('error', (error: Error) => {
      this.#malformed ??= error;
      this.#wake();
    });
    stream.on('data', (chunk: Buffer) => packets.parse(chunk));
    const end = () => {
      this.#ended = true;
      this.#wake();
    };
    stream.on('end', end);
    stream.on('close', end);
    stream.on('error', end);
  }

  /** Opens a connection and sends nothing. */
  static async open(transport: Transport = {}): Promise<MqttClient> {
    const { port = mqttPort(), host = '127.0.0.1', localAddress, tls, level } = transport;
    if (tls) {
      const below = localAddress === undefined ? {} : { socket: connectTcp({ port, host, localAddress }) };
      const socket = connectTls({ port, host, ...below, ...tls });
      await once(socket, 'secureConnect');
      return new MqttClient(socket, level);
    }
    const socket = connectTcp({ port, host, ...(localAddress && { localAddress }), noDelay: true });
    await once(socket, 'connect');
    return new MqttClient(socket, level);
  }

  // Sending.

  /** Sends any bytes, unchanged. Resolves when the kernel has them or the peer has closed the connection. */
  send(...bytes: Buffer[]): Promise<void> {
    return new Promise((resolve) => {
      if (this.#ended || !this.stream.writable) resolve();
      else this.stream.write(Buffer.concat(bytes), () => resolve());
    });
  }

  /** Sends the bytes in pieces of `pieceBytes`, each in a separate write (and segment). */
  async sendInPieces(bytes: Buffer, pieceBytes = 1): Promise<void> {
    for (let at = 0; at < bytes.length && !this.#ended; at += pieceBytes) {
      await this.send(bytes.subarray(at, at + pieceBytes));
    }
  }

  /** Sends whole packets, written by the codec, in one segment. */
  write(...packets: Packet[]): Promise<void> {
    return this.send(...packets.map((packet) => this.encode(packet)));
  }

  encode(packet: Packet): Buffer {
    return generate(packet, { protocolVersion: this.level });
  }

  /** Returns a packet id that this client has not used. */
  nextId(): number {
    return this.#nextId++;
  }

  connectPacket(login: Login = {}): IConnectPacket {
    const { token, username = token, password, clean = true, keepAlive = 60, will } = login;
    clientsMade += 1;
    const clientId = login.clientId ?? (this.level === 3 ? `test-${process.pid}-${clientsMade}` : '');
    return {
      cmd: 'connect',
      protocolId: this.level === 3 ? 'MQIsdp' : 'MQTT',
      protocolVersion: this.level,
      clientId,
      clean,
      keepalive: keepAlive,
      ...(username !== undefined && { username }),
      ...(password !== undefined && { password: Buffer.from(password) }),
      ...(will && { will }),
      ...(this.level === 5 && login.properties && { properties: login.properties }),
    };
  }

  publishPacket(topic: string, payload: string | Buffer, options: PublishOptions = {}): IPublishPacket {
    const { qos = 1, retain = false, dup = false, messageId, properties } = options;
    return {
      cmd: 'publish',
      topic,
      payload,
      qos,
      retain,
      dup,
      ...(qos > 0 && { messageId: messageId ?? this.nextId() }),
      ...(this.level === 5 && properties && { properties }),
    };
  }

  subscribePacket(filters: string | Record<string, QoS>, messageId = this.nextId()): ISubscribePacket {
    const wanted: Record<string, QoS> = typeof filters === 'string' ? { [filters]: 1 } : filters;
    const subscriptions = Object.entries(wanted).map(([topic, qos]) => ({ topic, qos }));
    return { cmd: 'subscribe', messageId, subscriptions };
  }

  // Sending and waiting for the answer.

  /** Sends CONNECT; returns the CONNACK with any code. */
  async connect(login: Login = {}): Promise<IConnackPacket> {
    await this.write(this.connectPacket(login));
    this.connack = await this.expect('connack');
    return this.connack;
  }

  /** Publishes with QoS 1; returns the PUBACK, other packets stay in the queue. */
  async publish(topic: string, payload: string | Buffer | object, options: Omit<PublishOptions, 'qos'> = {}) {
    const packet = this.publishPacket(topic, asPayload(payload), { ...options, qos: 1 });
    await this.write(packet);
    return this.pick('puback', { messageId: packet.messageId! });
  }

  /** Publishes with QoS 0, which has no answer. */
  publishQos0(topic: string, payload: string | Buffer | object): Promise<void> {
    return this.write(this.publishPacket(topic, asPayload(payload), { qos: 0 }));
  }

  /** Publishes with QoS 2, all four packets; returns the PUBREC. */
  async publishQos2(topic: string, payload: string | Buffer | object, messageId = this.nextId()) {
    await this.write(this.publishPacket(topic, asPayload(payload), { qos: 2, messageId }));
    const pubrec = await this.pick('pubrec', { messageId });
    if ((pubrec.reasonCode ?? 0) < 0x80) {
      await this.write({ cmd: 'pubrel', messageId });
      await this.pick('pubcomp', { messageId });
    }
    return pubrec;
  }

  /** Subscribes to one filter at QoS 1, or to several with their QoS; returns the codes of the SUBACK. */
  async subscribe(filters: string | Record<string, QoS>): Promise<Granted> {
    const packet = this.subscribePacket(filters);
    await this.write(packet);
    const { granted } = await this.pick('suback', { messageId: packet.messageId! });
    return granted as Granted;
  }

  /** Returns the codes of the UNSUBACK; MQTT 3 has none. */
  async unsubscribe(...filters: string[]): Promise<Granted> {
    const messageId = this.nextId();
    await this.write({ cmd: 'unsubscribe', messageId, unsubscriptions: filters });
    const { granted } = await this.pick('unsuback', { messageId });
    return granted ?? [];
  }

  // Receiving. Each wait has a deadline and fails with the packets that arrived instead.

  /** Returns the next packet of any type. */
  async next(waitMsMax = waitMsMaxDefault): Promise<Packet> {
    await this.#until(() => this.received.length > 0, waitMsMax, 'no packet');
    return this.received.shift()!;
  }

  /** Returns the next packet, which must be like this one. */
  async expect<C extends Command>(
    cmd: C,
    match: Partial<PacketOf<C>> = {},
    waitMsMax = waitMsMaxDefault,
  ): Promise<PacketOf<C>> {
    await this.#until(() => this.received.length > 0, waitMsMax, `no ${cmd}`);
    const packet = this.received.shift()!;
    expect(packet).toMatchObject({ ...match, cmd });
    return packet as PacketOf<C>;
  }

  /** Returns the first packet like this one; earlier packets stay in the queue. */
  async pick<C extends Command>(
    cmd: C,
    match: Partial<PacketOf<C>> = {},
    waitMsMax = waitMsMaxDefault,
  ): Promise<PacketOf<C>> {
    const wanted = Object.entries(match);
    const isIt = (packet: Packet) =>
      packet.cmd === cmd && wanted.every(([name, value]) => packet[name as keyof Packet] === value);
    await this.#until(() => this.received.some(isIt), waitMsMax, `no ${cmd} ${JSON.stringify(match)}`);
    const [packet] = this.received.splice(this.received.findIndex(isIt), 1);
    return packet as PacketOf<C>;
  }

  /** Returns the next PUBLISH of the server, on `topic` if one is given; acknowledges it unless `ack` is false. */
  async message(topic?: string, { ack = true, waitMsMax = waitMsMaxDefault } = {}): Promise<Message> {
    const packet = await this.pick('publish', topic === undefined ? {} : { topic }, waitMsMax);
    if (ack && packet.qos === 1) await this.write({ cmd: 'puback', messageId: packet.messageId! });
    return new Message(packet);
  }

  /** Checks that all sent packets were handled without an answer: the answer to a PINGREQ is the next packet. */
  async quiet(): Promise<void> {
    await this.write({ cmd: 'pingreq' });
    await this.expect('pingresp');
  }

  /**
   * Checks that no packet arrives for some time. For packets that have another cause than what was sent; otherwise use
   * `quiet`, which is faster.
   */
  async nothingFor(waitMs: number): Promise<void> {
    await new Promise<void>((resolve) => setTimeout(resolve, waitMs));
    if (this.received.length > 0 || this.#ended) throw new Error(`expected nothing, got ${this.#story()}`);
  }

  /** Resolves when the peer has ended the connection; earlier packets stay in `received`. */
  closed(waitMsMax = waitMsMaxDefault): Promise<void> {
    return this.#until(() => this.#ended, waitMsMax, 'not closed', { endIsFine: true });
  }

  /**
   * MQTT 5: expects DISCONNECT with one of these codes as the next and last packet. MQTT 3: expects the end without a
   * packet.
   */
  async closedFor(
    reasonCode: number | number[],
    waitMsMax = waitMsMaxDefault,
  ): Promise<PacketOf<'disconnect'> | undefined> {
    await this.closed(waitMsMax);
    const [disconnect, ...more] = this.received.splice(0);
    if (this.level < 5) {
      if (disconnect) throw new Error(`MQTT 3 got ${describe(disconnect)} before the end`);
      return undefined;
    }
    if (disconnect?.cmd !== 'disconnect') throw new Error(`no DISCONNECT before the end; got ${disconnect?.cmd}`);
    const codes = [reasonCode].flat().map(hex);
    expect(codes, describe(disconnect)).toContain(hex(disconnect.reasonCode));
    expect(more).toEqual([]);
    return disconnect;
  }

  get isClosed(): boolean {
    return this.#ended;
  }

  /** The slot of the worker that answered. MQTT 5 only, and only when the engine sends it (HTTP_TELL_WORKER). */
  get worker(): number | undefined {
    const named = this.connack?.properties?.userProperties?.['x-millrace-worker'];
    return named === undefined ? undefined : Number(named);
  }

  /** Sends DISCONNECT and ends this side; resolves when the server has closed too. */
  async disconnect(): Promise<void> {
    await this.write({ cmd: 'disconnect' });
    this.stream.end();
    await this.closed();
  }

  /** Ends the connection without a packet, as a lost link does. */
  cut(): void {
    this.#isCut = true;
    this.stream.destroy();
  }

  #wake(): void {
    for (const waiter of this.#waiters.splice(0)) waiter();
  }

  async #until(isSo: () => boolean, waitMsMax: number, what: string, { endIsFine = false } = {}): Promise<void> {
    const deadline = performance.now() + waitMsMax;
    while (!isSo()) {
      if (this.#malformed) throw new Error(`the server sent a malformed packet: ${this.#malformed.message}`);
      if (this.#ended && !endIsFine) {
        const message = `${what} before the end; got ${this.#story()}`;
        throw this.#isCut ? new AbandonedError(message) : new Error(message);
      }
      const leftMs = deadline - performance.now();
      if (leftMs <= 0) throw new Error(`${what} in ${waitMsMax} ms; got ${this.#story()}`);
      await this.#change(leftMs);
    }
  }

  #change(waitMsMax: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, waitMsMax);
      this.#waiters.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  #story(): string {
    const packets = this.received.map(describe).join(', ') || 'no packet';
    return this.#ended ? `${packets}, and the end` : packets;
  }
}

/** A PUBLISH that the server sent. */
class Message {
  readonly packet: IPublishPacket;

  constructor(packet: IPublishPacket) {
    this.packet = packet;
  }

  get topic(): string {
    return this.packet.topic;
  }

  get bytes(): Buffer {
    return this.packet.payload as Buffer;
  }

  get text(): string {
    return this.bytes.toString('utf8');
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests compare it with what they expect
  get json(): any {
    return JSON.parse(this.text);
  }
}

/** Opens a connection and logs in, which must succeed. The caller closes the connection. */
export async function connectMqtt(options: Transport & Login = {}): Promise<MqttClient> {
  const { port, host, localAddress, tls, level, ...login } = options;
  const client = await MqttClient.open({
    ...(port !== undefined && { port }),
    ...(host !== undefined && { host }),
    ...(localAddress !== undefined && { localAddress }),
    ...(tls && { tls }),
    ...(level && { level }),
  });
  const connack = await client.connect(login);
  expect(codeOf(connack)).toBe(0);
  return client;
}

/** Opens a connection, logs in, uses the connection and cuts it. */
export async function withMqtt<T>(options: Transport & Login, use: (client: MqttClient) => Promise<T>): Promise<T> {
  const client = await connectMqtt(options);
  try {
    return await use(client);
  } finally {
    client.cut();
  }
}

/** Opens, uses and cuts a connection without a login: for tests of what comes before it, and of logins that fail. */
export async function withSocket<T>(options: Transport, use: (client: MqttClient) => Promise<T>): Promise<T> {
  const client = await MqttClient.open(options);
  try {
    return await use(client);
  } finally {
    client.cut();
  }
}

/** The code of a CONNACK: a reason code in MQTT 5, a return code before. */
export function codeOf({ reasonCode, returnCode }: IConnackPacket): number {
  return reasonCode ?? returnCode ?? -1;
}

/** Formats a code: 0x8f. */
export function hex(code = 0): string {
  return `0x${code.toString(16).padStart(2, '0')}`;
}

/** Describes a packet in a line, for failures. */
function describe(packet: Packet): string {
  const { cmd, messageId, ...rest } = packet as Packet & { payload?: unknown };
  const fields = JSON.stringify({ ...rest, ...(rest.payload !== undefined && { payload: String(rest.payload) }) });
  return `${cmd}${messageId === undefined ? '' : ` ${messageId}`} ${fields.slice(0, 300)}`;
}

function asPayload(payload: string | Buffer | object): string | Buffer {
  return typeof payload === 'string' || Buffer.isBuffer(payload) ? payload : JSON.stringify(payload);
}
