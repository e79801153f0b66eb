/**
 * Sends commands to devices. The worker that a caller asked owns the command until its deadline: it offers the command
 * to sessions (`offering.ts`), the oldest of a device first (`oldest-first.ts`), and takes the reply from any session.
 * Replies come on the owners' channel of the device, to which an owner subscribes while it has a command.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { Turns } from '../base/turns.ts';
import type { Bus } from '../bus/bus.ts';
import type { Downlink } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import type { RpcNumbers } from './numbers.ts';
import { Offering } from './offering.ts';
import { OldestFirst } from './oldest-first.ts';
import { type OwnerMessage, sendToOwners, watchOwnerMessages } from './owner-messages.ts';
import { busAway, isRpcId, type RpcCall, type RpcOutcome } from './rpc.ts';
import { answerRpc, isDeviceOf } from './store.ts';
import { type Command, Waiters } from './waiters.ts';
import { WaitingCall } from './waiting-call.ts';

interface RpcDeps {
  postgres: Queries;
  downlink: Downlink;
  bus: Bus;
  numbers: RpcNumbers;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  metrics: Metrics;
}

/** The device that replies to a command. */
interface ReplyingDevice {
  readonly number: number;
  readonly tenantId: string;
}

export class Rpc {
  readonly #deps: RpcDeps;
  readonly #waiters: Waiters;
  readonly #order: OldestFirst;
  readonly #offering: Offering;
  /** Commands with a waiting caller at this worker. */
  readonly #calls = new Set<WaitingCall>();
  #isClosed = false;
  /** Limits the statements that store replies: a device may send any number of replies, even without a command. */
  readonly #stores = new Turns({
    atOnceMax: limits.rpcRepliesAtOnceMax,
    waitingMax: limits.rpcRepliesWaitingMax,
    refusal: () => unavailable('rpc_replies', 'Too many replies to commands are being stored; send this one again.'),
  });

  constructor(deps: RpcDeps) {
    this.#deps = deps;
    const { clock, scheduler = systemScheduler, downlink } = deps;
    this.#waiters = new Waiters({
      clock,
      scheduler,
      perDeviceMax: limits.rpcWaitingPerDeviceMax,
      commandsMax: limits.rpcWaitingMax,
      bytesMax: limits.rpcWaitingBytesMax,
      deviceBytesMax: limits.rpcWaitingBytesPerDeviceMax,
      customerBytesMax: limits.rpcWaitingBytesPerCustomerMax,
      tenantBytesMax: limits.rpcWaitingBytesPerTenantMax,
      onEmpty: (device) => this.#offering.end(device),
    });
    this.#order = new OldestFirst({
      scheduler,
      queued: (device) => this.#waiters.line(device)?.queued ?? [],
      send: (device, message) => sendToOwners(downlink, device, message),
      onFree: (device) => this.#offering.offer(device),
    });
    this.#offering = new Offering({ downlink, clock, scheduler, waiters: this.#waiters, order: this.#order });
    watchOwnerMessages(downlink, (device, message) => this.#received(device, message));
    deps.metrics.observed('rpc_waiting', 'Commands that wait for a session or a reply.', () => this.#waiters.size);
    deps.metrics.observed(
      'rpc_waiting_bytes',
      'Bytes of commands that wait for a session or a reply.',
      () => this.#waiters.bytes,
    );
  }

  get waiting(): number {
    return this.#waiters.size;
  }

  /** The number of commands that this worker could still own. */
  get room(): number {
    return this.#waiters.room;
  }

  /** Returns the refusal of a further command; undefined when there is room. */
  refusal(call: RpcCall): Error | undefined {
    return this.#waiters.refusal(call);
  }

  /**
   * Sends a command and waits until it is delivered (one-way) or replied to, or until its deadline. The command is
   * withdrawn when `callerGone` fires: then nothing reads the outcome.
   */
  async call(call: RpcCall, callerGone?: AbortSignal): Promise<RpcOutcome> {
    const { clock, numbers, postgres } = this.#deps;
    const refusal = this.#waiters.refusal(call);
    if (refusal) throw refusal;
    const waitMs = Math.min(call.expirationTime - clock.now(), limits.rpcWaitMsMax);
    if (waitMs <= 0) return { kind: 'unreachable' };
    const deadline = clock.monotonic() + waitMs;
    const id = await numbers.next(call);
    if (callerGone?.aborted) return { kind: 'unreachable' };
    if (this.#isClosed) throw draining();
    const waiting = new WaitingCall(call, {
      id,
      deadline,
      isDeviceOf: (device, customerId) => isDeviceOf(postgres, device, customerId),
      retry: (each) => this.retry(each),
      onEnd: (each) => {
        this.#calls.delete(each);
        this.drop(each);
      },
    });
    this.hold(waiting);
    this.#calls.add(waiting);
    callerGone?.addEventListener('abort', () => waiting.callerGone(), { once: true });
    return await waiting.outcome;
  }

  /**
   * Takes a reply of a device, from any session on any worker. Rejects when the store is unavailable, or when the bus
   * is and the command is not stored, so that the device can send the reply again. A reply without a waiting caller is
   * ignored.
   */
  async reply({ number: device, tenantId }: ReplyingDevice, id: number, text: string): Promise<void> {
    // No command has such an id.
    if (!isRpcId(id)) return;
    const { downlink, bus, postgres } = this.#deps;
    const command = this.#waiters.find(device, id);
    if (command && this.hasSession(command)) {
      await command.replied(text);
      return;
    }
    // Sends the message within the turn of the statement: nothing else limits replies for which no command waits.
    await this.#stores.run(tenantId, `device ${device}`, async () => {
      const { connected } = bus;
      if (connected) sendToOwners(downlink, device, { kind: 'reply', id, text });
      // A command that outlives restarts may have no owner at the moment, or one that the bus does not reach.
      const isStored = await answerRpc(postgres, device, id, text);
      if (!connected && !isStored) throw busAway();
    });
  }

  /** Takes ownership of the command; throws when there is no room for it. */
  hold(command: Command): void {
    this.#waiters.add(command);
    this.#offering.begin(command);
  }

  /** Ends the ownership of the command, if this worker owns the command. */
  drop(command: Command): void {
    this.#waiters.remove(command);
    this.#order.left(command);
  }

  /** Offers the command again, because the session that took the command did not deliver it. */
  retry(command: Command): void {
    if (!this.#waiters.has(command) || command.stage !== 'taken') return;
    this.#waiters.requeue(command);
    this.#offering.offer(command.device);
  }

  /** True for a command that a session may have taken: a reply may arrive before the answer to the offer. */
  hasSession(command: Command): boolean {
    return command.stage === 'taken' || this.#offering.isOffered(command);
  }

  /**
   * Ends the waits of all callers. A caller may send a command again to another server when no session has taken the
   * command.
   */
  close(): void {
    this.#isClosed = true;
    for (const call of [...this.#calls]) call.stopping(draining());
    this.#waiters.close();
  }

  #received(device: number, message: OwnerMessage): void {
    const command = this.#waiters.find(device, message.id);
    switch (message.kind) {
      case 'reply':
        if (command && this.hasSession(command)) void this.#replied(command, message.text);
        return;
      case 'confirm':
        if (command) this.#offering.confirm(command, message.delivered, message.error);
        return;
      case 'withdraw':
        command?.withdrawn();
        return;
      case 'held':
        if (!command) this.#order.held(device, message);
        return;
      case 'gone':
        this.#order.gone(device, message.id);
        return;
    }
  }

  async #replied(command: Command, text: string): Promise<void> {
    try {
      await command.replied(text);
    } catch (error) {
      this.#deps.log.warn('rpc_reply_unwritten', { reason: messageOf(error) });
    }
  }
}

function draining() {
  return unavailable('draining', 'This server is stopping; send the command again.');
}
