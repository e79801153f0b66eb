/**
 * The devices of a world that hold connections: they connect to any worker, leave, vanish, come back, execute commands,
 * and note the shared attributes that they receive.
 */

import type { Random } from '../harness/random.ts';
import { Connection } from './connection.ts';
import type { Rooms } from './rooms.ts';
import { isRow, type Tables } from './tables.ts';
import type { VirtualTime } from './virtual-time.ts';

/** `vanishes`: also ends connections without a word. `twin`: two clients use the login of the device at once. */
type ClientHabit = 'stays' | 'leaves' | 'vanishes' | 'twin';
export const clientHabits: readonly ClientHabit[] = ['stays', 'leaves', 'vanishes', 'vanishes', 'twin'];

interface ClientWorld {
  time: VirtualTime;
  random: Random;
  tables: Tables;
  /** The rooms of the workers that serve. */
  serving: () => Rooms[];
  note: (line: string) => void;
}

const signInMsMax = 3_000;

/** What a device has done and received, by any of its clients. */
interface Memory {
  /** Number of a command → the times at which the device executed it. */
  readonly executed: Map<number, number[]>;
  /** Ids and numbers of commands, in the order in which they came. */
  readonly received: { id: number; n: number }[];
  readonly attributes: Map<string, string>;
}

export class Client {
  readonly number: number;
  readonly habit: ClientHabit;
  readonly qos: 0 | 1;
  readonly memory: Memory;
  /** The places of connections in the order in which the client opened them. */
  readonly #places = new WeakMap<Connection, number>();
  #opened = 0;
  /** Attribute → the place of the connection that brought its last change. */
  readonly #broughtBy = new Map<string, number>();
  credentialsVersion = 1;
  connection: Connection | undefined;
  readonly #world: ClientWorld;
  /** Called when the current connection has ended. */
  #onClosed = () => {};
  #awayUntil = 0;

  constructor(number: number, habit: ClientHabit, qos: 0 | 1, world: ClientWorld, memory?: Memory) {
    this.number = number;
    this.habit = habit;
    this.qos = qos;
    this.#world = world;
    this.memory = memory ?? { executed: new Map(), received: [], attributes: new Map() };
  }

  /** Connects until `until` and leaves. Then the client connects a last time, or stays away. */
  async live(until: number, atEnd: 'connects' | 'leaves'): Promise<void> {
    const { time, random, tables, serving } = this.#world;
    while (tables.devices.has(this.number) && !(atEnd === 'leaves' && time.passed >= until)) {
      if (time.passed < this.#awayUntil) await time.sleep(this.#awayUntil - time.passed);
      const workers = serving();
      const isConnected = workers.length > 0 && (await this.#connect(random.pick(workers)));
      if (isConnected) await this.#stay(until, atEnd);
      this.credentialsVersion = tables.devices.get(this.number)?.credentialsVersion ?? 0;
      await time.sleep(random.between(5, random.next() < 0.3 ? 500 : 50));
    }
  }

  /** Ends the connection, and connects again after `ms` at the earliest. */
  stayAway(ms: number): void {
    this.#awayUntil = this.#world.time.passed + ms;
    this.connection?.disconnect();
  }

  /** Returns another client with the login and the memory of this device. */
  twin(): Client {
    return new Client(this.number, this.habit, this.qos, this.#world, this.memory);
  }

  /** Called by the connection. */
  closed(connection: Connection, reason: string): void {
    this.#world.note(`device ${this.number}: its connection to ${connection.rooms.node} ended, ${reason}`);
    if (connection !== this.connection) return;
    this.connection = undefined;
    this.#onClosed();
  }

  /** Called by the connection for each message that reaches the device. */
  received(connection: Connection, topic: string, payload: string): void {
    const { time } = this.#world;
    const { executed, received, attributes } = this.memory;
    const command = /rpc\/request\/(\d+)$/.exec(topic);
    if (command) {
      const { method, params } = JSON.parse(payload) as { method: string; params: number };
      executed.set(params, [...(executed.get(params) ?? []), time.passed]);
      received.push({ id: Number(command[1]), n: params });
      if (method === 'ask') connection.reply(Number(command[1]), String(params));
      return;
    }
    // What arrives late on a connection that the client has ended replaces nothing that a later connection has brought.
    const place = this.#places.get(connection)!;
    const isNews = (key: string) => place >= (this.#broughtBy.get(key) ?? 0);
    const { deleted = [], ...changes } = JSON.parse(payload) as { deleted?: string[] };
    const news = [...deleted, ...Object.keys(changes)].filter(isNews);
    for (const key of news) {
      this.#broughtBy.set(key, place);
      if (key in changes) attributes.set(key, JSON.stringify(changes[key as keyof typeof changes]));
      else attributes.delete(key);
    }
  }

  /** Returns what is wrong with the attributes that the device has received. */
  faultsOfAttributes(tables: Tables): string[] {
    const head = tables.heads.get(this.number);
    if (head?.firstSeen === null || head?.firstSeen === undefined) return [];
    const stored = new Map(
      tables
        .shared(this.number)
        .filter(isRow)
        .map((row) => [row.key, row]),
    );
    const faults: string[] = [];
    for (const [key, { value, version }] of stored) {
      const received = this.memory.attributes.get(key);
      if (version > head.firstSeen && received !== value) {
        faults.push(
          `device ${this.number}: attribute ${key} is ${value} (version ${version}), and the device has ${received}`,
        );
      }
    }
    for (const key of this.memory.attributes.keys()) {
      if (!stored.has(key)) faults.push(`device ${this.number}: has attribute ${key}, which is deleted`);
    }
    return faults;
  }

  async #connect(rooms: Rooms): Promise<boolean> {
    const { time, random } = this.#world;
    await time.sleep(random.between(0.1, 2));
    const connection = new Connection(this, rooms, { time, random });
    this.connection = connection;
    this.#opened += 1;
    this.#places.set(connection, this.#opened);
    const isOpen = await Promise.race([connection.open(), time.sleep(signInMsMax).then(() => false)]);
    if (!isOpen) connection.abandon();
    if (isOpen && this.connection === connection) {
      this.#world.note(`device ${this.number}: connected to ${rooms.node}`);
      return true;
    }
    this.connection = undefined;
    return false;
  }

  async #stay(until: number, atEnd: 'connects' | 'leaves'): Promise<void> {
    const { time, random } = this.#world;
    const closed = new Promise<void>((resolve) => {
      this.#onClosed = resolve;
    });
    const stayMs = this.habit === 'stays' ? 1e9 : random.between(50, 3_000);
    const isLast = time.passed + stayMs >= until;
    if (isLast && atEnd === 'connects') {
      await closed;
      return;
    }
    await Promise.race([closed, time.sleep(isLast ? until - time.passed : stayMs)]);
    const { connection } = this;
    if (!connection) return;
    this.connection = undefined;
    if (this.habit === 'vanishes' || this.habit === 'twin')
      connection.vanish(random.next() < 0.5 ? random.between(100, 2_000) : 60_000);
    else connection.disconnect();
  }
}
