/**
 * Persistent commands: each one is a row in PostgreSQL with a status, and outlives a restart. A worker owns a row by a
 * lease, which the worker renews. A row without a living owner is claimed by a worker that has room. Delivery is at
 * least once with the same id: an unconfirmed command is offered again, `retries` times.
 *
 * After an outage of PostgreSQL all leases may have run out. Workers then claim nothing for `rpcOwnersFirstMs`, so that
 * owners renew their leases and write the ends of commands first. A worker offers a command only while the row names
 * this worker as the owner, so two owners never deliver one command.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { createUuid } from '../base/uuid.ts';
import type { Downlink } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway, isForeignKeyViolation } from '../postgres/postgres-error.ts';
import { type OnPoll, SharedPoll } from '../postgres/shared-poll.ts';
import { FullOwners } from './full-owners.ts';
import type { RpcNumbers } from './numbers.ts';
import { sendToOwners } from './owner-messages.ts';
import { otherCustomer, type RpcCall, unknownDevice } from './rpc.ts';
import type { Rpc } from './send.ts';
import {
  claimRpcs,
  deleteRpc,
  insertRpc,
  isDeviceOf,
  type Keeping,
  keepsRpc,
  type OwnedRpc,
  pruneRpcs,
  type RpcStatus,
  releaseRpcs,
  renewRpcs,
  type StoredRpc,
  updateRpcStatus,
} from './store.ts';
import type { Command, Wanted } from './waiters.ts';

interface PersistentRpcsDeps {
  postgres: Queries;
  rpc: Rpc;
  numbers: RpcNumbers;
  downlink: Downlink;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  retriesMax: number;
  /** Days for which a closed command can be read; 0 = without limit. */
  keptDays: number;
  /** Returns the time by which commands expire; undefined while nothing may expire. */
  expiryTime: () => Promise<number | undefined>;
  onPoll?: OnPoll;
}

export interface PersistentCall extends RpcCall {
  deviceId: string;
  retries: number | null;
  /** A JSON document. */
  additionalInfo: string | null;
}

const openStatuses: RpcStatus[] = ['QUEUED', 'SENT', 'DELIVERED', 'TIMEOUT'];
const claimRoundsMax = 10;
/** Interval at which a stop checks whether commands are confirmed. */
const stopCheckMs = 5;

/** A row that this worker owns. The writes of one row run one after the other. */
interface Held {
  stored: StoredRpc;
  command: Command;
  delivered: boolean;
  attempts: number;
  /** Monotonic time at which a session took the command. */
  takenAt: number;
  /** Resolves when the writes so far have ended. */
  writes: Promise<void>;
}

export class PersistentRpcs {
  readonly #deps: PersistentRpcsDeps;
  readonly #scheduler: Scheduler;
  readonly #owner = randomUUID();
  readonly #held = new Map<string, Held>();
  /** Stops the timer of the next sweep. */
  #stopSweeps = () => {};
  #sweeping: Promise<void> = Promise.resolve();
  #renewedAt = 0;
  /**
   * Rows whose end or delivery PostgreSQL did not take, each with the statement that writes the status. Their lease is
   * renewed.
   */
  readonly #unwritten = new Map<string, () => Promise<unknown>>();
  /** Monotonic time before which this worker claims nothing. */
  #claimsFrom = Number.NEGATIVE_INFINITY;
  #prunedAt = Number.NEGATIVE_INFINITY;
  #stopped = false;
  /** Claims when commands have no owner. */
  readonly #claims: SharedPoll;
  readonly #fullOwners: FullOwners;
  /** The number of commands of this claim without room. Only the first one is logged. */
  #unheld = 0;

  constructor(deps: PersistentRpcsDeps) {
    this.#deps = deps;
    const { clock, scheduler = systemScheduler, onPoll } = deps;
    this.#scheduler = scheduler;
    this.#fullOwners = new FullOwners(clock);
    const read = async () => {
      const isRead = await this.#attempt(() => this.#claim());
      if (!isRead) this.#leaveToOwners();
      return isRead;
    };
    this.#claims = new SharedPoll({ kind: 'rpcs', clock, scheduler, read }, onPoll);
  }

  start(): void {
    void this.#claims.start();
    this.#sweepRegularly();
  }

  #sweepRegularly(): void {
    this.#sweeping = this.#sweep().finally(() => {
      if (this.#stopped) return;
      this.#stopSweeps = this.#scheduler.after(limits.rpcSweepMs, () => this.#sweepRegularly());
    });
  }

  /**
   * Releases the rows, so that other workers can claim them at once. Keeps a command that a session has taken until its
   * confirmation, for up to `msMax`: the next owner delivers an unconfirmed command again.
   */
  async stop(msMax: number = limits.rpcStopMsMax): Promise<void> {
    const { postgres, clock, rpc } = this.#deps;
    this.#stopped = true;
    this.#stopSweeps();
    await Promise.all([this.#sweeping, this.#claims.stop()]);
    const deadline = clock.monotonic() + msMax;
    const all = [...this.#held.values()];
    /** Leaves the commands that no session has, and those whose delivery is confirmed. */
    const releaseSettled = () => {
      for (const held of [...this.#held.values()]) {
        if (held.delivered || !rpc.hasSession(held.command)) this.#forget(held);
      }
    };
    releaseSettled();
    if (this.#held.size > 0) {
      await this.#attempt(() => releaseRpcs(postgres, this.#owner, [...this.#held.keys(), ...this.#unwritten.keys()]));
    }
    while (this.#held.size > 0 && clock.monotonic() < deadline) {
      await this.#scheduler.sleep(stopCheckMs);
      releaseSettled();
    }
    for (const held of [...this.#held.values()]) this.#forget(held);
    await Promise.all(all.map((each) => each.writes));
    await this.#attempt(() => this.#writeEnds());
    await this.#attempt(() => releaseRpcs(postgres, this.#owner, []));
  }

  /** Returns the id of the row after its commit. */
  async create(call: PersistentCall): Promise<string> {
    const { postgres, rpc, numbers, clock } = this.#deps;
    const now = clock.now();
    const row = { ...call, id: createUuid(now), createdTime: now, number: await numbers.next(call) };
    const owner = rpc.refusal(call) ? null : this.#owner;
    const isStored = await insertRpc(postgres, row, owner).catch((error: unknown) => {
      // The device was deleted after the command had its number.
      throw isForeignKeyViolation(error) ? unknownDevice() : error;
    });
    if (!isStored) {
      const message = `The device has ${limits.rpcPersistentPerDeviceMax} open persistent commands, which is the most it can have.`;
      throw new Fault('rpc_persistent_full', message, 5);
    }
    if (owner) this.#hold({ ...row, status: 'QUEUED', response: null, attempts: 0 });
    return row.id;
  }

  /** Deletes the row and withdraws a waiting command from its owner. Returns false when there is none. */
  async delete(tenantId: string, id: string): Promise<boolean> {
    const { postgres, downlink } = this.#deps;
    const rpc = await deleteRpc(postgres, tenantId, id);
    if (!rpc) return false;
    const held = this.#held.get(id);
    if (held) this.#forget(held);
    sendToOwners(downlink, rpc.device, { kind: 'withdraw', id: rpc.number });
    return true;
  }

  /** Begins to own a row. Returns true when an owner in `FullOwners` was noted, because its share has no room. */
  #hold(stored: OwnedRpc): boolean {
    if (this.#stopped || this.#held.has(stored.id) || this.#unwritten.has(stored.id)) return false;
    const { rpc, clock, log } = this.#deps;
    const { device, tenantId, customerId, number, method, params, oneway, status } = stored;
    const delivered = status === 'DELIVERED';
    const deadline = clock.monotonic() + stored.expirationTime - clock.now();
    const stage: Command['stage'] = delivered ? 'taken' : 'queued';
    const command: Command = {
      ...{ device, tenantId, customerId, id: number, method, params, oneway, deadline },
      ...{ persistent: true, stage, heapAt: -1 },
      wanted: () => this.#wanted(held),
      granted: () => {},
      taken: () => {
        held.takenAt = clock.monotonic();
        this.#write(held, 'SENT', ['QUEUED', 'TIMEOUT'], { isFinal: false });
      },
      confirmed: (isDelivered, error) => {
        if (isDelivered) this.#delivered(held);
        else if (error === undefined) this.#undelivered(held);
        else this.#failed(held, error);
      },
      replied: (text) => this.#replied(held, text),
      expired: () => {
        this.#forget(held);
        this.#write(held, held.delivered ? 'TIMEOUT' : 'EXPIRED', openStatuses, { isFinal: true });
      },
      // The command waits for its deadline: a session may open when the bus is connected again.
      away: () => {},
      doubtful: () => {},
      withdrawn: () => this.#forget(held),
    };
    const { attempts } = stored;
    const held: Held = { stored, command, delivered, attempts, takenAt: 0, writes: Promise.resolve() };
    this.#held.set(stored.id, held);
    try {
      rpc.hold(command);
      return false;
    } catch (error) {
      // No room: the lease of the command runs out and another worker, or this one, claims it.
      this.#held.delete(stored.id);
      this.#unheld += 1;
      if (this.#unheld === 1) log.warn('rpc_persistent_unheld', { reason: messageOf(error) });
      return this.#fullOwners.note(error, stored);
    }
  }

  /**
   * A command is not wanted when another worker has claimed the row. It is wanted even when the store is unavailable: a
   * second delivery is better than none. The command of a customer's user waits for the store then, and ends when the
   * customer has lost the device.
   */
  async #wanted(held: Held): Promise<Wanted> {
    const { postgres } = this.#deps;
    const { id, device, callerCustomerId } = held.stored;
    let keeping: Keeping = { isKept: true, older: [] };
    let isAllowed = callerCustomerId === null;
    const isRead = await this.#attempt(async () => {
      keeping = await keepsRpc(postgres, this.#owner, id);
      if (callerCustomerId !== null) isAllowed = await isDeviceOf(postgres, device, callerCustomerId);
    });
    const { isKept, older } = keeping;
    if (isRead && isKept && !isAllowed) this.#failed(held, otherCustomer().message);
    // A command that is not wanted leaves this worker. While its row is open, it is claimed again.
    return { isWanted: isKept && isAllowed, older };
  }

  #delivered(held: Held): void {
    if (held.delivered) return;
    held.delivered = true;
    const { oneway } = held.stored;
    if (oneway) this.#forget(held);
    this.#write(held, 'DELIVERED', ['QUEUED', 'SENT', 'TIMEOUT'], { isFinal: oneway });
  }

  #undelivered(held: Held): void {
    if (held.delivered || held.command.stage !== 'taken') return;
    const { rpc, retriesMax } = this.#deps;
    const attempts = ++held.attempts;
    const retries = Math.min(held.stored.retries ?? retriesMax, retriesMax);
    if (attempts > retries) {
      this.#failed(
        held,
        `There was a Timeout and all retry attempts have been exhausted. Retry attempts set: ${retries}`,
      );
      return;
    }
    this.#write(held, 'TIMEOUT', ['QUEUED', 'SENT', 'TIMEOUT'], { isFinal: false, attempts });
    if (this.#stopped) this.#forget(held);
    else rpc.retry(held.command);
  }

  #failed(held: Held, error: string): void {
    const { attempts } = held;
    this.#forget(held);
    this.#write(held, 'FAILED', openStatuses, { isFinal: true, response: JSON.stringify({ error }), attempts });
  }

  /** Throws when the reply could not be written: the device may send it again. */
  async #replied(held: Held, text: string): Promise<void> {
    if (held.stored.oneway) {
      this.#delivered(held);
      return;
    }
    const change = { isFinal: true, response: text };
    await held.writes;
    await updateRpcStatus(this.#deps.postgres, held.stored.id, 'SUCCESSFUL', openStatuses, change);
    this.#forget(held);
  }

  #forget(held: Held): void {
    this.#deps.rpc.drop(held.command);
    this.#held.delete(held.stored.id);
  }

  /**
   * Writes a status after the earlier ones. Sweeps write an end, and a delivery, again while PostgreSQL is unavailable:
   * without it, the command would be claimed and delivered again. Another failed write is only logged: a later status
   * replaces it.
   */
  #write(
    held: Held,
    status: RpcStatus,
    from: RpcStatus[],
    change: { isFinal: boolean; response?: string; attempts?: number },
  ): void {
    held.writes = held.writes.then(async () => {
      const { id } = held.stored;
      const write = () => updateRpcStatus(this.#deps.postgres, id, status, from, change);
      const isWritten = await this.#attempt(write);
      const isKept = change.isFinal || status === 'DELIVERED';
      if (!isWritten && isKept && this.#unwritten.size < limits.rpcWaitingMax) this.#unwritten.set(id, write);
    });
  }

  async #sweep(): Promise<void> {
    const { clock } = this.#deps;
    for (const held of [...this.#held.values()]) {
      const isUnconfirmed = held.command.stage === 'taken' && !held.delivered;
      // The session normally reports the timeout itself. This timer is for a session whose worker died.
      const confirmMsMax = limits.rpcConfirmMs + limits.rpcSweepMs;
      if (isUnconfirmed && clock.monotonic() - held.takenAt > confirmMsMax) this.#undelivered(held);
    }
    const isKept = await this.#attempt(async () => {
      await this.#renew();
      await this.#writeEnds();
    });
    if (!isKept) this.#leaveToOwners();
    await this.#attempt(() => this.#prune());
  }

  /** Called when PostgreSQL did not answer. */
  #leaveToOwners(): void {
    this.#claimsFrom = this.#deps.clock.monotonic() + limits.rpcOwnersFirstMs;
  }

  async #writeEnds(): Promise<void> {
    for (const [id, write] of [...this.#unwritten].slice(0, limits.rpcClaimMax)) {
      try {
        await write();
      } catch (error) {
        // A statement that PostgreSQL refuses is not repeated: the row is claimed when its lease has run out.
        if (!isAway(error)) this.#unwritten.delete(id);
        throw error;
      }
      this.#unwritten.delete(id);
    }
  }

  /** Claims rows until there is no room. Claims again when rows of a full owner took the places of other rows. */
  async #claim(): Promise<void> {
    const { postgres, rpc, clock } = this.#deps;
    if (clock.monotonic() < this.#claimsFrom) {
      // Claims nothing, and notices when PostgreSQL is still unavailable.
      await claimRpcs(postgres, this.#owner, 0, this.#fullOwners.current());
      return;
    }
    this.#unheld = 0;
    for (let round = 0; round < claimRoundsMax; round += 1) {
      const rowsMax = Math.min(rpc.room, limits.rpcClaimMax);
      if (rowsMax <= 0) return;
      const claimed = await claimRpcs(postgres, this.#owner, rowsMax, this.#fullOwners.current());
      let notedFull = false;
      for (const stored of claimed) notedFull = this.#hold(stored) || notedFull;
      // Without a full owner to exclude, the next claim would again return rows for which there is no room.
      if (claimed.length < rowsMax || !notedFull) return;
    }
  }

  async #renew(): Promise<void> {
    const { postgres, clock } = this.#deps;
    const ids = [...this.#held.keys(), ...this.#unwritten.keys()];
    if (ids.length === 0 || clock.monotonic() - this.#renewedAt < limits.rpcLeaseMs / 4) return;
    const mine = await renewRpcs(postgres, this.#owner, ids);
    this.#renewedAt = clock.monotonic();
    for (const id of ids) {
      const held = this.#held.get(id);
      if (held && !mine.has(id)) this.#forget(held);
    }
  }

  async #prune(): Promise<void> {
    const { postgres, clock, expiryTime, keptDays } = this.#deps;
    if (keptDays === 0 || clock.monotonic() - this.#prunedAt < limits.rpcPruneMs) return;
    this.#prunedAt = clock.monotonic();
    const time = await expiryTime();
    if (time !== undefined) await pruneRpcs(postgres, time - keptDays * dayMs, limits.rpcPruneRowsMax);
  }

  /**
   * Runs a statement whose failure only delays the row: the next sweep, or another worker, does the work again. Returns
   * false after a failure.
   */
  async #attempt(work: () => Promise<unknown>): Promise<boolean> {
    try {
      await work();
      return true;
    } catch (error) {
      if (!isAway(error)) this.#deps.log.warn('rpc_rows_unwritten', { reason: messageOf(error) });
      return false;
    }
  }
}
