/**
 * Orders the writes of attributes that wait for PostgreSQL. A queue runs one statement at a time: a run of saves, or
 * one removal. Tenants take turns, and so do the devices of one tenant; the writes of one device keep their order.
 * `AttributeWriter` makes the queues and runs their statements.
 */
import { randomUUID } from 'node:crypto';
import { Batches } from '../base/batches.ts';
import type { BudgetOwner } from '../base/byte-budget.ts';
import { assert } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import type { TypedValue } from '../value/typed.ts';
import type { Turn } from './write-store.ts';

/** A write until its outcome. It holds `bytes` of the budgets of `owners`. */
interface WaitingWrite<Outcome> {
  device: number;
  scope: number;
  tenantId: string | undefined;
  bytes: number;
  owners: readonly BudgetOwner[];
  resolve(outcome: Outcome): void;
  reject(error: unknown): void;
}

export interface Save extends WaitingWrite<void> {
  entries: Map<string, TypedValue>;
  ts: number;
}

/** The outcome is the keys that were deleted. */
export interface Remove extends WaitingWrite<string[]> {
  keys: string[];
}

type Operation = Save | Remove;

/** Runs the statements of a queue. Neither rejects: each operation gets its own outcome. */
interface Statements {
  saveAll(saves: Save[], queue: WriteQueue): Promise<void>;
  remove(remove: Remove, queue: WriteQueue): Promise<void>;
}

/** Values that one device, or one tenant, may write before the next one has its turn. */
const turnRows = 100;

export class WriteQueue {
  readonly #id = randomUUID();
  readonly #statements: Statements;
  #turns = 0;
  readonly #waiting = new FairQueue<Operation>(limits.attributeRowsWaitingMax, turnRows);
  /**
   * The tenant in whose turn the operations of a device wait, and their number. An operation that names no tenant must
   * not go before or after the operations of the device that are around it.
   */
  readonly #tenants = new Map<number, { readonly tenant: string; waiting: number }>();
  /** An operation taken from the queue that does not fit into the statement being made. */
  #kept: Operation | undefined;
  readonly #batches = new Batches(
    () => this.#kept !== undefined || this.#waiting.length > 0,
    () => this.#runBatch(),
  );

  constructor(statements: Statements) {
    this.#statements = statements;
  }

  /** Returns the number of the next statement, which the database counts. */
  nextTurn(): Turn {
    this.#turns += 1;
    return { queue: this.#id, number: this.#turns };
  }

  push(operation: Operation): void {
    // A removal is a statement of its own.
    const rows = 'keys' in operation ? Math.max(turnRows, operation.keys.length) : operation.entries.size;
    const { device } = operation;
    const own = this.#tenants.get(device) ?? { tenant: tenantOf(operation), waiting: 0 };
    if (own.waiting === 0) this.#tenants.set(device, own);
    own.waiting += 1;
    const refused = this.#waiting.push({ tenant: own.tenant, caller: String(device) }, operation, rows);
    assert(refused === undefined, 'the writer bounds what waits');
    this.#batches.wake();
  }

  async idle(): Promise<void> {
    await this.#batches.idle();
  }

  #shift(): Operation | undefined {
    const next = this.#waiting.shift();
    if (next === undefined) return undefined;
    const own = this.#tenants.get(next.device)!;
    own.waiting -= 1;
    if (own.waiting === 0) this.#tenants.delete(next.device);
    return next;
  }

  async #runBatch(): Promise<void> {
    const saves: Save[] = [];
    for (let rows = 0; rows < limits.attributeBatchRowsMax; ) {
      const next = this.#kept ?? this.#shift();
      this.#kept = undefined;
      if (!next) break;
      if ('keys' in next) {
        if (saves.length > 0) this.#kept = next;
        else await this.#statements.remove(next, this);
        break;
      }
      if (saves.length > 0 && isApart(next, saves.at(-1)!)) {
        this.#kept = next;
        break;
      }
      saves.push(next);
      rows += next.entries.size;
    }
    if (saves.length > 0) await this.#statements.saveAll(saves, this);
  }
}

/** A tenant with few values does not wait for the statement with the many values of another tenant. */
function isApart(next: Save, last: Save): boolean {
  return tenantOf(next) !== tenantOf(last) && Math.max(next.entries.size, last.entries.size) > turnRows;
}

function tenantOf({ tenantId }: Operation): string {
  return tenantId ?? '';
}
