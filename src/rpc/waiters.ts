/**
 * Holds the commands that this worker owns, by device and by deadline. Their number and bytes are limited for each
 * device, customer and tenant (`shares.ts`) and in total. One timer ends the commands whose deadline has passed: a few
 * at once, tenants and customers in turn, because callers of many commands ask again as soon as their commands have
 * ended. The callbacks of a command decide what happens next.
 */
import { ByteBudget } from '../base/byte-budget.ts';
import type { Clock } from '../base/clock.ts';
import { assert, Fault, unavailable } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';
import { DeadlineHeap, type HeapItem } from './deadline-heap.ts';
import { type CommandOwners, ownersOf, type ShareLimits, shareFull } from './shares.ts';

/** Whether a session may get a command, as a store says. */
export interface Wanted {
  isWanted: boolean;
  /** The ids of older commands of the device that wait at other owners. */
  older: readonly number[];
}

/** A command that waits for a session, for the confirmation of its delivery, or for its reply. */
export interface Command extends CommandOwners, HeapItem {
  readonly id: number;
  readonly method: string;
  readonly params: string;
  readonly oneway: boolean;
  readonly persistent: boolean;
  /** `queued`: no session has the command. `taken`: one session has it. */
  stage: 'queued' | 'taken';
  /**
   * Called each time before a session gets the command; undefined when nothing can end the command meanwhile. Any
   * worker may have deleted a persistent command whose `withdraw` message is still in transit, and a customer may have
   * lost the device.
   */
  readonly wanted: (() => Promise<Wanted>) | undefined;
  /** Called with true when a worker may give the command to its session, with false when no session took it there. */
  granted(isGranted: boolean): void;
  /** Called when exactly one session took the command. */
  taken(): void;
  /** Called with the outcome of a delivery; with an `error` when no session can ever deliver the command. */
  confirmed(delivered: boolean, error?: string): void;
  replied(text: string): Promise<void> | void;
  /** Called at the deadline, after the command has left `Waiters`. */
  expired(): void;
  /** Called when the bus is disconnected, so that a listener cannot be found. */
  away(): void;
  /** Called when a session may have taken the command: a worker was granted the command and is silent. */
  doubtful(): void;
  /** Called when the sender withdraws the command, and when it is not wanted any more. */
  withdrawn(): void;
}

/** The commands of one device. `queued` is in the order of ids, the oldest first. */
interface Line {
  readonly device: number;
  readonly queued: Command[];
  readonly taken: Map<number, Command>;
}

/** A command for which there may be room. */
type WantedCommand = CommandOwners & Pick<Command, 'method' | 'params'>;

interface WaitersDeps extends ShareLimits {
  clock: Clock;
  scheduler: Scheduler;
  perDeviceMax: number;
  commandsMax: number;
  bytesMax: number;
  /** Called when a device has no command any more. */
  onEmpty(device: number): void;
}

/** A Node timer takes 31 bits of milliseconds. */
const timerMsMax = 2_147_483_647;
const commandOverheadBytes = 512;

export class Waiters {
  readonly #deps: WaitersDeps;
  readonly #lines = new Map<number, Line>();
  readonly #heap = new DeadlineHeap<Command>();
  readonly #budget: ByteBudget;
  /** Stops the timer of the next deadline. */
  #stopDeadline = () => {};
  /** Commands that left at their deadline and whose callbacks have not been called yet. */
  readonly #ended = new FairQueue<Command>(Number.POSITIVE_INFINITY);
  #stopEnding: (() => void) | undefined;

  constructor(deps: WaitersDeps) {
    this.#deps = deps;
    this.#budget = new ByteBudget(deps.bytesMax);
  }

  get size(): number {
    return this.#heap.size;
  }

  get bytes(): number {
    return this.#budget.held;
  }

  /** The number of commands that still fit. */
  get room(): number {
    return this.bytes >= this.#deps.bytesMax ? 0 : this.#deps.commandsMax - this.#heap.size;
  }

  line(device: number): Line | undefined {
    return this.#lines.get(device);
  }

  find(device: number, id: number): Command | undefined {
    const line = this.#lines.get(device);
    return line?.taken.get(id) ?? line?.queued.find((command) => command.id === id);
  }

  /** Returns the refusal of a further command; undefined when there is room. */
  refusal(wanted: WantedCommand): Fault | undefined {
    const { perDeviceMax, commandsMax, bytesMax } = this.#deps;
    const line = this.#lines.get(wanted.device);
    if (line && line.queued.length + line.taken.size >= perDeviceMax) {
      const message = `The device has ${perDeviceMax} commands waiting, which is the most it can have.`;
      return new Fault('rpc_device_full', message, 1);
    }
    const bytes = bytesOf(wanted);
    const full = this.#budget.lacking(bytes, ownersOf(wanted, this.#deps));
    if (full) return shareFull(full);
    if (this.#heap.size >= commandsMax || this.bytes + bytes > bytesMax) {
      return unavailable('rpc_full', 'This server has its maximum of waiting commands; try again later.');
    }
    return undefined;
  }

  /** Adds the command, or throws the refusal. */
  add(command: Command): void {
    const refusal = this.refusal(command);
    if (refusal) throw refusal;
    assert(!this.find(command.device, command.id), 'an id is used once');
    let line = this.#lines.get(command.device);
    if (!line) this.#lines.set(command.device, (line = { device: command.device, queued: [], taken: new Map() }));
    this.#place(line, command);
    const isTaken = this.#budget.take(bytesOf(command), ownersOf(command, this.#deps));
    assert(isTaken, 'a command that is not refused has room');
    this.#heap.add(command);
    if (this.#heap.first === command) this.#arm();
  }

  /** Returns false when the command has ended already. */
  remove(command: Command): boolean {
    if (!this.#heap.remove(command)) return false;
    this.#budget.release(bytesOf(command), ownersOf(command, this.#deps));
    const line = this.#lines.get(command.device);
    assert(line, 'a waiting command is in a line');
    this.#leave(line, command);
    if (line.queued.length === 0 && line.taken.size === 0) {
      this.#lines.delete(command.device);
      this.#deps.onEmpty(command.device);
    }
    return true;
  }

  take(command: Command): void {
    this.#restage(command, 'taken');
  }

  /** Returns a command to its place by age after a failed delivery. */
  requeue(command: Command): void {
    this.#restage(command, 'queued');
  }

  has(command: Command): boolean {
    return this.#heap.has(command);
  }

  close(): void {
    this.#stopDeadline();
    this.#stopEnding?.();
  }

  #restage(command: Command, stage: Command['stage']): void {
    const line = this.#lines.get(command.device);
    assert(line && this.has(command), 'only a waiting command changes its stage');
    this.#leave(line, command);
    command.stage = stage;
    this.#place(line, command);
  }

  #place(line: Line, command: Command): void {
    if (command.stage === 'taken') {
      line.taken.set(command.id, command);
      return;
    }
    let at = line.queued.length;
    while (at > 0 && isOlder(command.id, line.queued[at - 1]!.id)) at -= 1;
    line.queued.splice(at, 0, command);
  }

  #leave(line: Line, command: Command): void {
    if (command.stage === 'taken') line.taken.delete(command.id);
    else line.queued.splice(line.queued.indexOf(command), 1);
  }

  /** Sets the timer to the next deadline. */
  #arm(): void {
    this.#stopDeadline();
    const next = this.#heap.first;
    if (!next) return;
    const { clock, scheduler } = this.#deps;
    const waitMs = Math.ceil(next.deadline - clock.monotonic());
    this.#stopDeadline = scheduler.after(Math.max(0, Math.min(waitMs, timerMsMax)), () => this.#expire());
  }

  #expire(): void {
    const now = this.#deps.clock.monotonic();
    for (let next = this.#heap.first; next && next.deadline <= now; next = this.#heap.first) {
      this.remove(next);
      this.#ended.push({ tenant: next.tenantId, caller: next.customerId ?? '' }, next);
    }
    this.#arm();
    if (!this.#stopEnding) this.#end();
  }

  /** Ends some of the commands, and the others after a pause. */
  #end(): void {
    const count = Math.max(limits.rpcEndsAtOnce, Math.ceil(this.#ended.length / limits.rpcEndsRounds));
    for (let n = 0; n < count; n += 1) this.#ended.shift()?.expired();
    this.#stopEnding =
      this.#ended.length > 0 ? this.#deps.scheduler.after(limits.rpcEndsMs, () => this.#end()) : undefined;
  }
}

/** Ids wrap at 2^31. `id` is older if counting up from `id` reaches `other` within 2^30 steps. */
export function isOlder(id: number, other: number): boolean {
  return ((other - id) & 0x7fffffff) < 0x40000000 && id !== other;
}

function bytesOf({ method, params }: Pick<Command, 'method' | 'params'>): number {
  return commandOverheadBytes + 2 * (method.length + params.length);
}
