/**
 * The decoded large messages that wait for the journal: tenants take turns, and so do the devices of a tenant. The
 * threads that decode wait for room here, tenant by tenant, so that few decoded messages wait and a tenant with many
 * delays no other tenant.
 */
import { FairQueue } from '../base/fair-queue.ts';

/** Bytes of one turn of a tenant or device: a large message uses several turns. */
const turnBytes = 256 * 1024;

interface QueuedMessage {
  readonly tenantId: string;
  readonly caller: string;
  readonly bytes: number;
}

interface Share {
  messages: number;
  bytes: number;
}

/** A call that waits until `left` messages are taken: of its tenant, or of any tenant. */
interface RoomWaiter {
  readonly tenantId: string | undefined;
  left: number;
  readonly resume: () => void;
}

export class LargeQueue<Message extends QueuedMessage> {
  readonly #bytesMax: number;
  readonly #queue = new FairQueue<Message>(Number.POSITIVE_INFINITY, turnBytes);
  /** Messages that were accepted after the messages of the gathering commit, and are written after that commit. */
  #held: Message[] = [];
  readonly #shares = new Map<string, Share>();
  #waiters: RoomWaiter[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get length(): number {
    return this.#queue.length + this.#held.length;
  }

  /** Above the cap each tenant that waits has an equal part of the cap; a tenant without a message has room for one. */
  isFull(tenantId: string): boolean {
    if (this.#bytes <= this.#bytesMax) return false;
    const share = this.#shares.get(tenantId);
    return share !== undefined && share.bytes > this.#bytesMax / this.#shares.size;
  }

  /** `isHeld`: the message waits for `release`. */
  push(message: Message, isHeld: boolean): void {
    const { tenantId, bytes } = message;
    let share = this.#shares.get(tenantId);
    if (!share) this.#shares.set(tenantId, (share = { messages: 0, bytes: 0 }));
    share.messages += 1;
    share.bytes += bytes;
    this.#bytes += bytes;
    if (isHeld) this.#held.push(message);
    else this.#enqueue(message);
  }

  /** Called when the gathering commit is written. */
  release(): void {
    if (this.#held.length === 0) return;
    for (const message of this.#held) this.#enqueue(message);
    this.#held = [];
  }

  shift(): Message | undefined {
    const message = this.#queue.shift();
    if (message === undefined) return undefined;
    const { tenantId, bytes } = message;
    const share = this.#shares.get(tenantId)!;
    share.messages -= 1;
    share.bytes -= bytes;
    this.#bytes -= bytes;
    if (share.messages === 0) this.#shares.delete(tenantId);
    for (const waiter of this.#waiters) if ((waiter.tenantId ?? tenantId) === tenantId) waiter.left -= 1;
    this.#resume(({ left }) => left <= 0);
    return message;
  }

  /**
   * Resolves when as many messages of the tenant were taken as wait now; undefined: none waits. A message that comes
   * later delays no waiting call. Above the cap a tenant without a message waits for one message of any tenant.
   */
  room(tenantId: string): Promise<void> | undefined {
    const share = this.#shares.get(tenantId);
    if (share !== undefined) return this.#roomAfter(tenantId, share.messages);
    return this.#bytes > this.#bytesMax ? this.#roomAfter(undefined, 1) : undefined;
  }

  /** Called while telemetry is refused: bodies are decoded at once, and their senders get the refusal. */
  stopWaiting(): void {
    this.#resume(() => true);
  }

  #roomAfter(tenantId: string | undefined, left: number): Promise<void> {
    return new Promise((resume) => this.#waiters.push({ tenantId, left, resume }));
  }

  #resume(isReady: (waiter: RoomWaiter) => boolean): void {
    if (this.#waiters.length === 0) return;
    const ready = this.#waiters.filter(isReady);
    if (ready.length === 0) return;
    this.#waiters = this.#waiters.filter((waiter) => !ready.includes(waiter));
    for (const { resume } of ready) resume();
  }

  #enqueue(message: Message): void {
    this.#queue.push({ tenant: message.tenantId, caller: message.caller }, message, message.bytes);
  }
}
