/** The counters of the MQTT door. */
import type { Counter, Metrics } from '../../base/metrics/metrics.ts';
import { type CloseReason, closeReasons } from '../wire/close-reason.ts';

const packetNames: (string | undefined)[] = [
  undefined,
  'connect',
  undefined,
  'publish',
  'puback',
  'pubrec',
  'pubrel',
  'pubcomp',
  'subscribe',
  undefined,
  'unsubscribe',
  undefined,
  'pingreq',
  undefined,
  'disconnect',
  'auth',
];

export class Counters {
  /** Counters by type of packet. */
  readonly packetsIn: Counter[];
  readonly packetsOut: Counter;
  readonly bytesIn: Counter;
  readonly pushesTooLarge: Counter;
  readonly #metrics: Metrics;
  readonly #disconnects = new Map<CloseReason, Counter>();
  readonly #connects = new Map<string, Counter>();
  readonly #refused = new Map<string, Counter>();
  readonly #discarded = new Map<string, Counter>();

  constructor(metrics: Metrics) {
    this.#metrics = metrics;
    this.packetsIn = packetNames.map((name) =>
      metrics.counter('mqtt_packets_received_total', 'Packets of MQTT clients, by type.', { type: name ?? 'other' }),
    );
    this.packetsOut = metrics.counter('mqtt_packets_sent_total', 'Packets to MQTT clients.');
    this.bytesIn = metrics.counter('mqtt_bytes_received_total', 'Bytes of MQTT clients.');
    this.pushesTooLarge = metrics.counter(
      'mqtt_pushes_too_large_total',
      'Messages not sent because they are above the Maximum Packet Size of the client.',
    );
    for (const reason of closeReasons) this.#disconnect(reason);
  }

  disconnected(reason: CloseReason): void {
    this.#disconnect(reason).add(1);
  }

  connected(result: string): void {
    this.#labelled(this.#connects, 'mqtt_connects_total', 'CONNECT packets answered, by result.', 'result', result);
  }

  refused(reason: string): void {
    this.#labelled(this.#refused, 'mqtt_publish_refused_total', 'Messages refused, by reason.', 'reason', reason);
  }

  /** Counts a message that was not stored and that its client will not send again. */
  discarded(reason: string, qos: 0 | 1 | 2): void {
    const key = `${qos} ${reason}`;
    let counter = this.#discarded.get(key);
    if (!counter) {
      const help = 'Messages that were discarded, whose clients will not send them again.';
      counter = this.#metrics.counter('mqtt_discarded_total', help, { reason, qos: String(qos) });
      this.#discarded.set(key, counter);
    }
    counter.add(1);
  }

  #disconnect(reason: CloseReason): Counter {
    let counter = this.#disconnects.get(reason);
    if (!counter) {
      counter = this.#metrics.counter('mqtt_disconnects_total', 'Connections that ended, by reason.', { reason });
      this.#disconnects.set(reason, counter);
    }
    return counter;
  }

  #labelled(counters: Map<string, Counter>, name: string, help: string, label: string, value: string): void {
    let counter = counters.get(value);
    if (!counter) {
      counter = this.#metrics.counter(name, help, { [label]: value });
      counters.set(value, counter);
    }
    counter.add(1);
  }
}
