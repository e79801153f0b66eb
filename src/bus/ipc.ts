/** The bus of one host, as a worker sees it: everything goes through the hub in the primary (ipc-primary.ts). */
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { type Bus, type BusCounters, GapReports, type Handler, SizeCheck } from './bus.ts';
import { decodePayload, encodeEntry, isBusMessage, type Port, PortSender } from './port.ts';
import { ChannelSubscriptions } from './subscriptions.ts';

export class IpcBus implements Bus {
  /** Each message and each subscription passes the primary. */
  readonly spansHosts = false;
  readonly #sender: PortSender;
  readonly #scheduler: Scheduler;
  readonly #counters: BusCounters;
  readonly #size: SizeCheck;
  readonly #subscriptions: ChannelSubscriptions;
  readonly #waiting = new Map<number, () => void>();
  readonly #gaps: GapReports;
  #nextId = 1;
  #closed = false;

  constructor(port: Port, counters: BusCounters, scheduler = systemScheduler) {
    this.#scheduler = scheduler;
    this.#counters = counters;
    this.#size = new SizeCheck(counters);
    this.#subscriptions = new ChannelSubscriptions(counters);
    const { busMessagesInFlightMax: messagesMax, busBytesInFlightMax: bytesMax } = limits;
    this.#gaps = new GapReports(counters, scheduler);
    this.#sender = new PortSender(port, {
      dropped: counters.dropped,
      messagesMax,
      bytesMax,
      scheduler,
      onGap: (lost) => this.#gaps.report(lost),
    });
    port.onMessage((message) => this.#receive(message));
    port.onClose(() => this.#end());
  }

  get connected(): boolean {
    return !this.#closed;
  }

  get inFlight(): number {
    return this.#sender.inFlight;
  }

  publish(channel: string, payload: Buffer | string): void {
    if (this.#closed) this.#counters.dropped.add(1);
    else if (this.#size.admits(channel, payload) && this.#sender.carry(encodeEntry(channel, payload)))
      this.#counters.published.add(1);
  }

  async subscribe(channel: string, handler: Handler): Promise<() => void> {
    // Each call adds a separate listener, even for the same function.
    const listener: Handler = (payload, from) => handler(payload, from);
    this.#subscriptions.add(channel, listener);
    await this.#confirmed(channel);
    return () => {
      if (!this.#subscriptions.remove(channel, listener) || this.#closed) return;
      this.#sender.send({ millrace: 'bus', verb: 'unsubscribe', channel });
    };
  }

  /** The hub lives as long as its workers, so the connection is never lost; a queue that is full loses messages. */
  onReconnect(callback: () => void): void {
    this.#gaps.onGap(callback);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    for (const channel of this.#subscriptions.channels()) {
      this.#sender.send({ millrace: 'bus', verb: 'unsubscribe', channel });
    }
    this.#end();
  }

  #end(): void {
    this.#closed = true;
    this.#gaps.close();
  }

  #confirmed(channel: string): Promise<void> {
    if (this.#closed) return Promise.resolve();
    const id = this.#nextId++;
    return new Promise((resolve) => {
      const done = () => {
        stopTimer();
        this.#waiting.delete(id);
        resolve();
      };
      const stopTimer = this.#scheduler.after(limits.busTimeoutMs, done);
      this.#waiting.set(id, done);
      this.#sender.send({ millrace: 'bus', verb: 'subscribe', channel, id });
    });
  }

  #receive(message: unknown): void {
    if (!isBusMessage(message) || this.#closed) return;
    if (message.verb === 'subscribed') this.#waiting.get(message.id)?.();
    if (message.verb === 'gap') this.#gaps.report(message.lost);
    if (message.verb !== 'carry') return;
    for (const entry of message.entries) this.#subscriptions.deliver(entry[0], decodePayload(entry));
  }
}
