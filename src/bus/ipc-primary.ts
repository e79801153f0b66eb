/**
 * The hub of the one-host bus, in the primary: receives messages from every worker and sends them to the subscribers of
 * the channel. Above a cap a worker that does not read is skipped, and is notified of the gap when it reads again. The
 * subscriptions of a dead worker end with it.
 */
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { type Entry, isBusMessage, type Port, PortSender } from './port.ts';

interface Member {
  sender: PortSender;
  channels: Set<string>;
}

export class BusHub {
  readonly #members = new Set<Member>();
  readonly #byChannel = new Map<string, Set<Member>>();
  readonly #dropped: Counter;
  readonly #scheduler: Scheduler;

  constructor(metrics: Metrics, scheduler = systemScheduler) {
    this.#scheduler = scheduler;
    this.#dropped = metrics.counter('bus_hub_dropped_total', 'Messages for a worker that did not keep up.');
    metrics.observed(
      'bus_hub_channels',
      'Channels that at least one process subscribes to.',
      () => this.#byChannel.size,
    );
  }

  get channelCount(): number {
    return this.#byChannel.size;
  }

  attach(port: Port): void {
    const { busMessagesInFlightMax: messagesMax, busBytesInFlightMax: bytesMax } = limits;
    const sender: PortSender = new PortSender(port, {
      dropped: this.#dropped,
      messagesMax,
      bytesMax,
      scheduler: this.#scheduler,
      onGap: (lost) => sender.send({ millrace: 'bus', verb: 'gap', lost }),
    });
    const member: Member = { sender, channels: new Set() };
    this.#members.add(member);
    port.onMessage((message) => {
      if (this.#members.has(member)) this.#receive(member, message);
    });
    port.onClose(() => this.#detach(member));
  }

  #receive(member: Member, message: unknown): void {
    if (!isBusMessage(message)) return;
    switch (message.verb) {
      case 'carry':
        for (const entry of message.entries) this.#deliver(entry);
        break;
      case 'subscribe':
        this.#add(member, message.channel);
        member.sender.send({ millrace: 'bus', verb: 'subscribed', id: message.id });
        break;
      case 'unsubscribe':
        this.#remove(member, message.channel);
        break;
      case 'subscribed':
      case 'gap':
        break;
    }
  }

  #deliver(entry: Entry): void {
    const members = this.#byChannel.get(entry[0]);
    if (members) for (const member of members) member.sender.carry(entry);
  }

  #add(member: Member, channel: string): void {
    member.channels.add(channel);
    const members = this.#byChannel.get(channel);
    if (members) members.add(member);
    else this.#byChannel.set(channel, new Set([member]));
  }

  #remove(member: Member, channel: string): void {
    member.channels.delete(channel);
    const members = this.#byChannel.get(channel);
    if (members?.delete(member) && members.size === 0) this.#byChannel.delete(channel);
  }

  #detach(member: Member): void {
    this.#members.delete(member);
    for (const channel of [...member.channels]) this.#remove(member, channel);
  }
}
