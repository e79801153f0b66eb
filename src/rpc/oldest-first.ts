/**
 * Lets the oldest command of a device go first when several workers, also of several hosts, own commands of this
 * device. Owners announce to each other which commands wait. An owner that died withdraws nothing, so a command waits
 * for older ones until none of them has gone for `rpcElderWaitMs`. When no session was there in this time, a living
 * owner could not deliver them: the command is offered before them, and they count again once a session is found. When
 * a session was there, the owners are asked. Commands that no owner announces again are forgotten: further sessions, as
 * those of a device that polls, restart no wait. A living owner that is slow has `rpcElderMsMax`.
 */
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';
import type { OwnerMessage } from './owner-messages.ts';
import { type Command, isOlder } from './waiters.ts';

interface OldestFirstDeps {
  scheduler: Scheduler;
  /** The commands of this worker that wait for a session of the device, the oldest first. */
  queued: (device: number) => readonly Command[];
  send: (device: number, message: OwnerMessage) => void;
  /** Called when an older command of another owner no longer holds up the commands of this worker. */
  onFree: (device: number) => void;
}

interface Wait {
  stop: () => void;
  /** True when the owners of older commands can deliver them: a session was found, or has opened. */
  readonly hasSession: boolean;
  /** How often the owners were asked. */
  asks: number;
  /** The older commands that no owner has announced again since the owners were asked. */
  silent: Set<number>;
}

interface DeviceOrder {
  /** Commands that wait at other owners, as these owners announced. */
  readonly elsewhere: Set<number>;
  /**
   * Commands that did not go within `rpcElderWaitMs`, in which no session was known: the next offer does not wait for
   * these commands.
   */
  readonly passedOver: Set<number>;
  /**
   * Commands of other owners that have gone, or for which a command here has waited in vain. PostgreSQL may
   * still name them as waiting.
   */
  readonly settled: Set<number>;
  /** The wait of the oldest command here for older ones; undefined while no command waits for another. */
  wait: Wait | undefined;
  /** Stops the announcement that is due. */
  stopAnnouncement: (() => void) | undefined;
}

export class OldestFirst {
  readonly #deps: OldestFirstDeps;
  readonly #devices = new Map<number, DeviceOrder>();
  /** Commands that were announced to other owners. */
  readonly #announced = new Set<Command>();

  constructor(deps: OldestFirstDeps) {
    this.#deps = deps;
  }

  /** Called when this worker owns a first command of the device. */
  begin(device: number): void {
    assert(!this.#devices.has(device), 'the order of the commands of a device begins once');
    this.#devices.set(device, {
      elsewhere: new Set(),
      passedOver: new Set(),
      settled: new Set(),
      wait: undefined,
      stopAnnouncement: undefined,
    });
  }

  /** Called when this worker owns no command of the device any more. */
  end(device: number): void {
    const order = this.#devices.get(device);
    assert(order !== undefined, 'the order of the commands of a device ends once');
    this.#devices.delete(device);
    order.wait?.stop();
    order.stopAnnouncement?.();
  }

  /**
   * Announces the commands of the device that still wait after `rpcAnnounceMs`: a session takes most of them at once.
   */
  announceSoon(device: number): void {
    const order = this.#devices.get(device);
    if (order === undefined) return;
    order.stopAnnouncement ??= this.#deps.scheduler.after(limits.rpcAnnounceMs, () => {
      order.stopAnnouncement = undefined;
      this.#announce(device);
    });
  }

  /** True when another owner has an older command of the same device. */
  isHeldUp(command: Command): boolean {
    for (const id of this.#devices.get(command.device)?.elsewhere ?? []) if (isOlder(id, command.id)) return true;
    return false;
  }

  /**
   * Called when a session could take the command. True when the command must let older ones of others go first, also
   * those that it was to pass over while no session was known.
   */
  yields(command: Command): boolean {
    this.opened(command.device);
    return this.isHeldUp(command);
  }

  /** Returns what `isHeldUp` returns. If true, calls `onFree` when the older command has gone, or the wait is over. */
  mustWait(command: Command): boolean {
    const { device } = command;
    const order = this.#devices.get(device);
    if (order === undefined || !this.isHeldUp(command)) return false;
    if (order.wait === undefined) this.#wait(device, order, { hasSession: false });
    return true;
  }

  /** Begins the whole wait, in place of one that runs. */
  #wait(device: number, order: DeviceOrder, { hasSession }: Pick<Wait, 'hasSession'>): void {
    order.wait?.stop();
    const wait: Wait = { stop: () => {}, hasSession, asks: 0, silent: new Set() };
    order.wait = wait;
    this.#goOn(device, order, wait);
  }

  #goOn(device: number, order: DeviceOrder, wait: Wait): void {
    wait.stop = this.#deps.scheduler.after(limits.rpcElderWaitMs, () => {
      if (wait.hasSession && this.#asks(device, order, wait)) {
        this.#goOn(device, order, wait);
      } else {
        order.wait = undefined;
        this.#passOver(device, order, wait.hasSession);
        this.#deps.onFree(device);
      }
    });
  }

  /**
   * Forgets the older commands whose owners did not answer. Returns false when the oldest command here waits no longer.
   */
  #asks(device: number, order: DeviceOrder, wait: Wait): boolean {
    for (const id of wait.silent) order.elsewhere.delete(id);
    const [first] = this.#deps.queued(device);
    if (!first || !this.isHeldUp(first) || wait.asks * limits.rpcElderWaitMs >= limits.rpcElderMsMax) return false;
    wait.asks += 1;
    wait.silent = new Set([...order.elsewhere].filter((id) => isOlder(id, first.id)));
    this.#announced.add(first);
    this.#deps.send(device, { kind: 'held', id: first.id, isNew: true, isAsking: true });
    return true;
  }

  /** Passes over the commands that hold up the oldest one here. Younger ones still hold up those behind it. */
  #passOver(device: number, { elsewhere, passedOver }: DeviceOrder, hasSession: boolean): void {
    const [first] = this.#deps.queued(device);
    for (const id of elsewhere) {
      if (!first || !isOlder(id, first.id)) continue;
      elsewhere.delete(id);
      if (!hasSession) passedOver.add(id);
    }
  }

  /** Returns those of the older commands, which PostgreSQL names, that must go first. */
  unsettled(device: number, older: readonly number[]): number[] {
    const order = this.#devices.get(device);
    return order === undefined ? [] : older.filter((id) => !order.settled.has(id));
  }

  /** Called when a command here has waited for these older ones in vain. */
  settle(device: number, older: readonly number[]): void {
    const order = this.#devices.get(device);
    if (order !== undefined) for (const id of older) note(order.settled, id, limits.rpcPersistentPerDeviceMax);
  }

  /** Called with the outcome of an offer: whether a session took the command. */
  offered(device: number, isTaken: boolean): void {
    const order = this.#devices.get(device);
    if (order === undefined) return;
    if (isTaken) order.passedOver.clear();
    else countAgain(order);
  }

  /**
   * Called when a session opened or was found: the owner of an older command can deliver that command now. The first
   * session of a wait begins the whole wait again.
   */
  opened(device: number): void {
    const order = this.#devices.get(device);
    if (order === undefined) return;
    countAgain(order);
    const [first] = this.#deps.queued(device);
    if (first && this.isHeldUp(first) && !order.wait?.hasSession) this.#wait(device, order, { hasSession: true });
  }

  /** Called when another owner announced a command. */
  held(device: number, { id, isNew, isAsking = false }: Extract<OwnerMessage, { kind: 'held' }>): void {
    const order = this.#devices.get(device);
    if (order === undefined) return;
    order.passedOver.delete(id);
    order.settled.delete(id);
    order.wait?.silent.delete(id);
    note(order.elsewhere, id, limits.rpcElsewhereMax);
    if (!isNew) return;
    for (const command of this.#deps.queued(device)) {
      if (!this.#announced.has(command) || (isAsking && !isOlder(command.id, id))) continue;
      this.#deps.send(device, { kind: 'held', id: command.id, isNew: false });
    }
  }

  /** Called when a command of another owner no longer waits. */
  gone(device: number, id: number): void {
    const order = this.#devices.get(device);
    if (order === undefined) return;
    note(order.settled, id, limits.rpcPersistentPerDeviceMax);
    if (order.elsewhere.delete(id)) this.#waitAgain(device, order, id);
    else if (!order.passedOver.delete(id)) return;
    this.#deps.onFree(device);
  }

  /** Begins the wait again after an older command has gone: the owner of the next older one may deliver it now. */
  #waitAgain(device: number, order: DeviceOrder, gone: number): void {
    const { wait } = order;
    const [first] = this.#deps.queued(device);
    if (wait === undefined || (first && !isOlder(gone, first.id))) return;
    if (first && this.isHeldUp(first)) {
      this.#wait(device, order, wait);
    } else {
      wait.stop();
      order.wait = undefined;
    }
  }

  /** Called when a command of this worker no longer waits: a session took the command, or the command has ended. */
  left(command: Command): void {
    if (this.#announced.delete(command)) this.#deps.send(command.device, { kind: 'gone', id: command.id });
  }

  /** Announces new commands. To the first one the other owners answer with all of theirs. */
  #announce(device: number): void {
    let isNew = true;
    for (const command of this.#deps.queued(device)) {
      if (this.#announced.has(command)) continue;
      this.#announced.add(command);
      this.#deps.send(device, { kind: 'held', id: command.id, isNew });
      isNew = false;
    }
  }
}

/** Makes the commands that were passed over hold up younger ones again. */
function countAgain(order: DeviceOrder): void {
  for (const id of order.passedOver) note(order.elsewhere, id, limits.rpcElsewhereMax);
  order.passedOver.clear();
}

/** Adds the id, in place of the one that was added first when the set has its most. */
function note(ids: Set<number>, id: number, idsMax: number): void {
  ids.add(id);
  if (ids.size > idsMax) ids.delete(ids.values().next().value!);
}
