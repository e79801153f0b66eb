/**
 * A connection of a device to a worker, as MQTT makes it: the device signs in, then subscribes, and the worker sends
 * with QoS 0 or 1. The server notices a device that vanished only when its Keep Alive ends.
 */

import { lookUpDevices } from '../../src/device/sql/look-up-store.ts';
import type { DeviceSession } from '../../src/downlink/sessions.ts';
import { type Confirm, Session, type SessionLink } from '../../src/mqtt/session/session.ts';
import type { CloseReason } from '../../src/mqtt/wire/close-reason.ts';
import type { Random } from '../harness/random.ts';
import type { Client } from './clients.ts';
import type { Rooms } from './rooms.ts';
import type { VirtualTime } from './virtual-time.ts';

const topics = { rpc: 'v1/devices/me/rpc/request/', attributes: 'v1/devices/me/attributes' } as const;

interface ConnectionDeps {
  time: VirtualTime;
  random: Random;
}

export class Connection implements SessionLink {
  readonly client: Client;
  readonly rooms: Rooms;
  readonly #deps: ConnectionDeps;
  #session: Session | undefined;
  #deviceSession: DeviceSession | undefined;
  /** Confirmations of messages that were sent with QoS 1 and not acknowledged. */
  readonly #unacknowledged = new Set<Confirm>();
  /** Messages with QoS 0 that are not written yet. */
  readonly #unwritten: { topic: string; payload: string; confirm: Confirm | undefined }[] = [];
  #isSubscribed = false;
  #isOver = false;
  /** True when nothing that is sent reaches the other side. */
  #isVanished = false;
  /** Packets keep their order in each direction. */
  #toClientAt = 0;
  #toServerAt = 0;

  constructor(client: Client, rooms: Rooms, deps: ConnectionDeps) {
    this.client = client;
    this.rooms = rooms;
    this.#deps = deps;
  }

  get isGone(): boolean {
    return this.#isOver;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** True when the device has subscribed and the connection works. */
  get isServing(): boolean {
    return this.#isSubscribed && !this.#isOver && !this.#isVanished;
  }

  get deviceSession(): DeviceSession | undefined {
    return this.#deviceSession;
  }

  /** Signs in with the credentials of the device. Resolves with false when the sign-in was refused. */
  async open(): Promise<boolean> {
    const { client, rooms } = this;
    const { number, credentialsVersion } = client;
    let row: Awaited<ReturnType<typeof lookUpDevices>>[number] | undefined;
    try {
      [row] = await lookUpDevices(rooms.postgres, [number]);
    } catch {
      return false;
    }
    if (!row || row.credentialsVersion !== credentialsVersion || rooms.process.isOver || this.#isOver) return false;
    const owner = { sessionEnded: (reason: CloseReason) => this.close(reason) };
    this.#deviceSession = rooms.sessions.open(row, owner, row.credentialsVersion);
    rooms.connections.add(this);
    const facts = { kind: 'device', level: 4, clientId: '', remoteAddress: '', profileTopics: undefined } as const;
    this.#session = new Session(this, { ...facts, device: this.#deviceSession.device });
    const { subscriptions } = this.#session;
    for (const [stream, topic] of Object.entries(topics)) {
      const name = stream as keyof typeof topics;
      subscriptions.add(name === 'rpc' ? `${topic}+` : topic, client.qos, [{ stream: name, topic }]);
    }
    this.#toClient(() => this.#fromClient(() => this.#subscribe()));
    return true;
  }

  push(topic: string, payload: string | Uint8Array, qos: number, confirm: Confirm | undefined): boolean {
    if (this.#isOver) return false;
    if (qos === 0) {
      // A message counts as delivered when it is written, which is after this call, in the order of the calls.
      this.#unwritten.push({ topic, payload: String(payload), confirm });
      this.rooms.process.soon(() => this.#write());
      return true;
    }
    const settle: Confirm = (delivered) => {
      if (this.#unacknowledged.delete(settle)) confirm?.(delivered);
    };
    this.#unacknowledged.add(settle);
    this.#toClient(() => {
      this.client.received(this, topic, String(payload));
      this.#fromClient(() => settle(true));
    });
    return true;
  }

  #write(): void {
    const { topic, payload, confirm } = this.#unwritten.shift()!;
    if (!this.#isOver) this.#toClient(() => this.client.received(this, topic, payload));
    confirm?.(!this.#isOver);
  }

  sendFile(): 'gone' {
    return 'gone';
  }

  close(reason: CloseReason): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const settle of [...this.#unacknowledged]) settle(false);
    const { rooms } = this;
    rooms.connections.delete(this);
    if (this.#session && this.#isSubscribed) {
      rooms.rpcStream.stop(this.#session);
      rooms.attributeStream.stop(this.#session);
    }
    this.#session?.ended(reason);
    this.#deviceSession?.end();
    this.#toClient(() => this.client.closed(this, reason));
  }

  /** The device sends its reply to a command. */
  reply(id: number, text: string): void {
    this.#fromClient(() => {
      const device = { number: this.client.number, tenantId: 'mill' };
      // A refused reply ends the connection: the device sends the reply again on the next one.
      void this.rooms.rpc.reply(device, id, text).catch(() => this.close('server_shutdown'));
    });
  }

  /** The device ends the connection. */
  disconnect(): void {
    this.#fromClient(() => this.close('client_disconnect'));
  }

  /** The device gave up its sign-in. */
  abandon(): void {
    if (!this.#session) this.#isOver = true;
    else this.vanish(1_000);
  }

  /** The device is gone without a word. */
  vanish(keepAliveMs: number): void {
    this.#isVanished = true;
    this.rooms.process.after(keepAliveMs, () => this.close('connection_lost'));
  }

  /** The process of the worker has ended. */
  lost(): void {
    this.#isOver = true;
    const { time, random } = this.#deps;
    time.after(random.between(0.1, 2), () => {
      if (!this.#isVanished) this.client.closed(this, 'connection_lost');
    });
  }

  #subscribe(): void {
    if (this.#isOver || !this.#session) return;
    const { subscriptions } = this.#session;
    for (const [stream, topic] of Object.entries(topics)) subscriptions.switchOn(stream as keyof typeof topics, topic);
    this.#isSubscribed = true;
    this.rooms.rpcStream.start(this.#session);
    this.rooms.attributeStream.start(this.#session);
  }

  #toClient(arrive: () => void): void {
    const { time, random } = this.#deps;
    this.#toClientAt = Math.max(this.#toClientAt + 1e-4, time.passed + random.between(0.1, 3));
    time.at(this.#toClientAt, () => {
      if (!this.#isVanished) arrive();
    });
  }

  #fromClient(arrive: () => void): void {
    const { time, random } = this.#deps;
    this.#toServerAt = Math.max(this.#toServerAt + 1e-4, time.passed + random.between(0.1, 3));
    time.at(this.#toServerAt, () => {
      if (this.#isVanished) return;
      this.rooms.process.event(() => {
        if (!this.#isOver) arrive();
      });
    });
  }
}
