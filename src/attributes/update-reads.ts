/**
 * Gathers the reads of polls: one statement at a time for many devices. Offers of a device are stored before its next
 * read. The next poll of a quick client thus confirms the last answer.
 */
import { Batches } from '../base/batches.ts';
import { messageOf, unavailable } from '../base/errors.ts';
import { FairQueue, type ItemOwner } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Queries } from '../postgres/client.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';
import { type CursorState, cursorStateOf, isFirst, type Update, updateOf } from './update.ts';
import {
  pruneDeletions,
  readHeads,
  readUpdateRows,
  readVersionsBefore,
  startCursors,
  storeCursors,
  storeOffers,
  type UpdateOffer,
  type UpdateRow,
} from './update-store.ts';

interface Answer {
  version: number;
  update: Update | undefined;
}

/** Whose update is read. */
export interface Followed {
  readonly number: number;
  readonly tenantId: string;
  readonly customerId: string | null;
}

interface Ask {
  readonly device: number;
  readonly owner: ItemOwner;
  /** Epoch milliseconds at which the first of the waiting callers began to listen. */
  since: number;
  promise: Promise<Answer>;
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

/** `unsure`: the update was sent, and the client has not confirmed it. */
export type Arrival = 'confirmed' | 'unsure';

export class UpdateReads {
  readonly #queries: Queries;
  readonly #log: Log;
  /** Reads that wait, by device. Tenants, then their customers, take turns in `#turns`. */
  readonly #asks = new Map<number, Ask>();
  readonly #turns = new FairQueue<Ask>(limits.updateQueueMax);
  #offers = new Map<number, UpdateOffer>();
  readonly #batches = new Batches(
    () => this.#offers.size > 0 || this.#asks.size > 0,
    () => this.#runBatch(),
  );

  constructor(queries: Queries, log: Log) {
    this.#queries = queries;
    this.#log = log;
  }

  ask({ number: device, tenantId, customerId }: Followed, since: number): Promise<Answer> {
    const known = this.#asks.get(device);
    if (known) {
      known.since = Math.min(known.since, since);
      return known.promise;
    }
    const ask = { device, since, owner: { tenant: tenantId, caller: customerId ?? '' } } as Ask;
    ask.promise = new Promise((resolve, reject) => {
      ask.resolve = resolve;
      ask.reject = reject;
    });
    this.#push(ask);
    return ask.promise;
  }

  #push(ask: Ask): void {
    this.#asks.set(ask.device, ask);
    const refused = this.#turns.push(ask.owner, ask);
    if (refused) {
      this.#asks.delete(refused.device);
      refused.reject(unavailable('updates_waiting', 'Too many devices ask for updates at once; try again.'));
    }
    this.#batches.wake();
  }

  /** Never waits. An offer that cannot be stored is lost, and the device receives that update again. */
  offer(device: number, { kind, version }: Update, arrival: Arrival): void {
    if (this.#offers.size >= limits.updateQueueMax) return;
    const confirmed = arrival === 'confirmed';
    const offer = this.#offers.get(device) ?? { device, changes: null, deletions: null, confirmed };
    offer[kind] = Math.max(offer[kind] ?? 0, version);
    offer.confirmed &&= confirmed;
    this.#offers.set(device, offer);
    this.#batches.wake();
  }

  /** Returns all changes after a version, including those that the device has seen. */
  async readFrom(device: number, version: number): Promise<Update | undefined> {
    const cursor = { device, changesSeen: version, deletionsSeen: version };
    return updateOf((await readUpdateRows(this.#queries, [cursor])).rows);
  }

  async idle(): Promise<void> {
    await this.#batches.idle();
  }

  async #runBatch(): Promise<void> {
    const offers = takeSome(this.#offers);
    if (offers.length > 0) await this.#storeOffers(offers.map(([, offer]) => offer));
    // Reads wait until every offer is stored, because a queued offer may belong to a device that reads. Offers are few.
    if (this.#offers.size > 0) return;
    const asks = this.#takeAsks();
    if (asks.length > 0) await this.#answer(asks);
  }

  #takeAsks(): Ask[] {
    const asks: Ask[] = [];
    while (asks.length < limits.updateBatchMax) {
      const ask = this.#turns.shift();
      if (ask === undefined) break;
      this.#asks.delete(ask.device);
      asks.push(ask);
    }
    return asks;
  }

  async #storeOffers(offers: UpdateOffer[]): Promise<void> {
    try {
      await storeOffers(this.#queries, offers);
    } catch (error) {
      this.#log.warn('attribute_offers_lost', { devices: offers.length, reason: messageOf(error) });
    }
  }

  /** Devices whose values do not fit into this statement wait for another turn. */
  async #answer(asks: Ask[]): Promise<void> {
    const waiting = new Map(asks.map((ask) => [ask.device, ask]));
    try {
      const behind: CursorState[] = [];
      for (const state of await this.#statesOf(asks)) {
        const { device, version, changesSeen, deletionsSeen } = state;
        if (version > Math.min(changesSeen, deletionsSeen)) behind.push(state);
        else waiting.get(device)!.resolve({ version, update: undefined });
      }
      if (behind.length === 0) return;
      const { rows, unread } = await readUpdateRows(this.#queries, behind);
      const byDevice = new Map<number, UpdateRow[]>();
      for (const row of rows) {
        const known = byDevice.get(row.device);
        if (known) known.push(row);
        else byDevice.set(row.device, [row]);
      }
      for (const { device, version } of behind.slice(0, behind.length - unread.length)) {
        waiting.get(device)!.resolve({ version, update: updateOf(byDevice.get(device) ?? []) });
      }
      for (const { device } of unread) this.#askAgain(waiting.get(device)!);
    } catch (error) {
      for (const ask of asks) ask.reject(error);
    }
  }

  #askAgain(ask: Ask): void {
    const later = this.#asks.get(ask.device);
    if (!later) {
      this.#push(ask);
      return;
    }
    later.since = Math.min(later.since, ask.since);
    later.promise.then(ask.resolve, ask.reject);
  }

  /** Returns the cursors of the devices, stored if they are new. */
  async #statesOf(asks: { device: number; since: number }[]): Promise<CursorState[]> {
    const devices = asks.map(({ device }) => device);
    const heads = new Map((await readHeads(this.#queries, devices)).map((head) => [head.device, head]));
    // A device that subscribes for the first time receives the changes since it began to listen, though its cursor
    // starts only now.
    const first = asks.filter(({ device }) => {
      const head = heads.get(device);
      return head !== undefined && isFirst(head);
    });
    const versions = first.length > 0 ? await readVersionsBefore(this.#queries, first) : undefined;
    const states = devices.map((device) => cursorStateOf(device, heads.get(device), versions?.get(device)));
    const firstDevices = new Set(first.map(({ device }) => device));
    const isStarted = ({ device }: CursorState) => firstDevices.has(device) || !heads.has(device);
    await this.#storeCursors(states.filter((state) => state.isNew && !isStarted(state)));
    const started = await this.#startCursors(states.filter(isStarted));
    return states.map((state) => ({ ...state, ...started.get(state.device) }));
  }

  /** Returns the cursors that are stored: another worker may start the cursor of a device at the same time. */
  async #startCursors(states: CursorState[]): Promise<Map<number, Pick<CursorState, 'changesSeen' | 'deletionsSeen'>>> {
    if (states.length === 0) return new Map();
    const stored = await leavingOutDeleted(() => startCursors(this.#queries, states));
    await this.#prune(stored);
    return new Map(stored.map(({ device, ...seen }) => [device, seen]));
  }

  async #storeCursors(states: CursorState[]): Promise<void> {
    if (states.length === 0) return;
    await leavingOutDeleted(() => storeCursors(this.#queries, states));
    await this.#prune(states);
  }

  async #prune(stored: readonly Pick<CursorState, 'device' | 'deletionsSeen'>[]): Promise<void> {
    const seen = stored.filter(({ deletionsSeen }) => deletionsSeen > 0);
    if (seen.length === 0) return;
    await pruneDeletions(
      this.#queries,
      seen.map(({ device }) => device),
    );
  }
}

/** Repeats a statement while devices are deleted as it runs: the next statement leaves them out. */
async function leavingOutDeleted<Result>(statement: () => Promise<Result>): Promise<Result> {
  for (;;) {
    try {
      return await statement();
    } catch (error) {
      if (!isForeignKeyViolation(error)) throw error;
    }
  }
}

function takeSome<T>(waiting: Map<number, T>): [number, T][] {
  const taken: [number, T][] = [];
  for (const entry of waiting) {
    taken.push(entry);
    waiting.delete(entry[0]);
    if (taken.length === limits.updateBatchMax) break;
  }
  return taken;
}
