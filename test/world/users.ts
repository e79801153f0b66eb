/**
 * The users of a world: they send commands, write and delete shared attributes, change credentials and delete devices,
 * each through any worker. Each command has a number, which its device notes when it executes the command.
 */
import { ownValue } from '../../src/attributes/attributes.ts';
import { sharedScope } from '../../src/attributes/scope.ts';
import { Fault } from '../../src/base/errors.ts';
import type { Random } from '../harness/random.ts';
import type { Client } from './clients.ts';
import type { Database } from './database.ts';
import type { Rooms } from './rooms.ts';
import type { VirtualTime } from './virtual-time.ts';

interface SentCommand {
  n: number;
  client: Client;
  isPersistent: boolean;
  /** What the user was answered; `none` before the answer, and when the worker died. */
  outcome: string;
  at: number;
  expiresAt: number;
  isDeleted: boolean;
}

interface UserWorld {
  time: VirtualTime;
  random: Random;
  database: Database;
  /** One client of each device. */
  clients: readonly Client[];
  serving: () => Rooms[];
  note: (line: string) => void;
}

const keys = ['a', 'b', 'c', 'd'];
const persistentMsMin = 60_000;
/** Commands that wait for one device, and the longest pause between two of them. */
const lineLength = 6;
const lineMsMax = 15;

export class Users {
  readonly #world: UserWorld;
  readonly #commands: SentCommand[] = [];
  #next = 1;
  /** Things that users did and that concern other workers. */
  events = 0;

  constructor(world: UserWorld) {
    this.#world = world;
  }

  async act(until: number): Promise<void> {
    const { time, random, serving, clients } = this.#world;
    while (time.passed < until) {
      await time.sleep(random.between(1, random.next() < 0.2 ? 400 : 60));
      const workers = serving();
      if (workers.length === 0) continue;
      const rooms = random.pick(workers);
      const client = random.pick(clients);
      this.events += 1;
      const draw = random.next();
      this.#send(rooms, client);
      if (draw < 0.35) this.call(rooms, client, random.between(300, 5_000));
      else if (draw < 0.55) this.#store(rooms, client, { deletes: random.next() < 0.1 });
      else if (draw < 0.85) this.#write(rooms, client);
      else if (draw < 0.95) this.#removeKeys(rooms, client);
      else if (draw < 0.99) this.#changeDevice(rooms, client, 'credentials');
      else if (client.habit === 'leaves') this.#changeDevice(rooms, client, 'deleted');
    }
  }

  /** A message of the device counts in its rate limit at this worker. */
  #send(rooms: Rooms, { number }: Client): void {
    try {
      rooms.rateLimits.message({ number, tenantId: 'mill' });
    } catch (error) {
      isExpected(error);
    }
  }

  /** Sends a command, and awaits its outcome. */
  call(rooms: Rooms, client: Client, timeoutMs: number): SentCommand {
    const { random } = this.#world;
    const command = this.#newCommand(client, { isPersistent: false, timeoutMs });
    const { oneway, ...call } = this.#callOf(command, rooms, timeoutMs, random.next() < 0.3);
    rooms.rpc.call({ ...call, oneway }).then(
      ({ kind }) => this.#answered(command, kind),
      (error: unknown) => this.#failed(command, error),
    );
    return command;
  }

  /** Sends commands to a device that is not connected, each through any worker. */
  async queue(client: Client, timeoutMs: number): Promise<SentCommand[]> {
    const { time, random, serving } = this.#world;
    const commands: SentCommand[] = [];
    for (let n = 0; n < lineLength; n += 1) {
      const rooms = random.pick(serving());
      const isPersistent = random.next() < 0.5;
      commands.push(isPersistent ? this.#store(rooms, client) : this.call(rooms, client, timeoutMs));
      await time.sleep(random.between(0, lineMsMax));
    }
    return commands;
  }

  /** Returns what is wrong with commands that waited for their device: it must have received them by their ids. */
  faultsOfQueue(commands: readonly SentCommand[]): string[] {
    const [first] = commands;
    if (!first) return [];
    const { number, memory } = first.client;
    const own = new Set(commands.map(({ n }) => n));
    const ids = memory.received.filter(({ n }) => own.has(n)).map(({ id }) => id);
    const sorted = [...ids].sort((a, b) => a - b);
    const outcomes = commands.map(({ n, outcome }) => `${n} ${outcome}`).join(', ');
    const text = `device ${number}: commands that waited came as ${ids.join(', ')} (${outcomes})`;
    return ids.length === commands.length && ids.every((id, at) => id === sorted[at]) ? [] : [text];
  }

  /** Returns what is wrong with the commands whose outcome is known. */
  faults(): string[] {
    const { tables } = this.#world.database;
    return this.#commands.flatMap((command) => {
      const { n, client, isPersistent, outcome, isDeleted } = command;
      const times = client.memory.executed.get(n)?.length ?? 0;
      const say = (text: string) => [`command ${n} of device ${client.number} (QoS ${client.qos}): ${text}`];
      if (!isPersistent) {
        if (times > 1 && client.qos === 0) return say(`was executed ${times} times`);
        if (outcome === 'replied' && times === 0) return say('was replied to and not executed');
        if (cannotHaveRun(outcome) && times > 0) return say(`was executed, and its user was answered: ${outcome}`);
        return [];
      }
      const mustRun = outcome === 'stored' && !isDeleted && client.qos === 1 && tables.devices.has(client.number);
      return mustRun && times === 0 ? say('is persistent and was not executed') : [];
    });
  }

  #newCommand(client: Client, { isPersistent, timeoutMs }: { isPersistent: boolean; timeoutMs: number }): SentCommand {
    const at = this.#world.time.passed;
    const command = { n: this.#next, client, isPersistent, outcome: 'none', at, expiresAt: at + timeoutMs };
    this.#next += 1;
    this.#commands.push({ ...command, isDeleted: false });
    return this.#commands.at(-1)!;
  }

  #callOf({ n, client: { number: device } }: SentCommand, rooms: Rooms, timeoutMs: number, oneway: boolean) {
    const expirationTime = Math.ceil(rooms.process.now() + timeoutMs);
    const owners = { device, tenantId: 'mill', customerId: null, callerCustomerId: null };
    return { ...owners, method: oneway ? 'do' : 'ask', params: String(n), oneway, expirationTime };
  }

  #store(rooms: Rooms, client: Client, { deletes = false } = {}): SentCommand {
    const { time, random } = this.#world;
    const command = this.#newCommand(client, { isPersistent: true, timeoutMs: persistentMsMin });
    const call = this.#callOf(command, rooms, persistentMsMin, random.next() < 0.3);
    const deviceId = `device-${client.number}`;
    rooms.persistentRpcs.create({ ...call, deviceId, retries: null, additionalInfo: null }).then(
      (id) => {
        this.#answered(command, 'stored');
        if (!deletes) return;
        command.isDeleted = true;
        time.after(random.between(1, 500), () => this.#deleteStored(id));
      },
      (error: unknown) => this.#failed(command, error),
    );
    return command;
  }

  #deleteStored(id: string): void {
    const { random, serving } = this.#world;
    const workers = serving();
    if (workers.length > 0) random.pick(workers).persistentRpcs.delete('mill', id).catch(isExpected);
  }

  #write(rooms: Rooms, { number }: Client): void {
    const { random } = this.#world;
    const entries = new Map<string, ReturnType<typeof ownValue.long>>();
    for (let n = random.below(2); n >= 0; n -= 1) entries.set(random.pick(keys), ownValue.long(this.#next++));
    rooms.writer.save(number, sharedScope, entries, 'mill').catch(isExpected);
  }

  #removeKeys(rooms: Rooms, { number }: Client): void {
    rooms.writer.remove(number, sharedScope, [this.#world.random.pick(keys)], 'mill').catch(isExpected);
  }

  #changeDevice(rooms: Rooms, { number }: Client, change: 'credentials' | 'deleted'): void {
    const { database, note } = this.#world;
    note(`the user ${change === 'deleted' ? 'deletes' : 'changes the credentials of'} device ${number}`);
    database.changeDevice(rooms.process, number, change).then((logged) => {
      if (logged) rooms.changes.publish([logged]);
    }, isExpected);
  }

  #answered(command: SentCommand, outcome: string): void {
    command.outcome = outcome;
    this.#world.note(`command ${command.n} of device ${command.client.number}: ${outcome}`);
  }

  #failed(command: SentCommand, error: unknown): void {
    isExpected(error);
    this.#answered(command, (error as Fault).reason);
  }
}

/** Throws an error that is no refusal. */
function isExpected(error: unknown): void {
  if (!(error instanceof Fault)) throw error;
}

/** True for an answer that promises the user that no device has executed the command. */
function cannotHaveRun(outcome: string): boolean {
  return !['none', 'replied', 'delivered', 'unanswered', 'rpc_doubtful', 'stored'].includes(outcome);
}
