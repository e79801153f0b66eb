/**
 * Lets the workers hand over MQTT connections, which then go to other hosts: all connections before a stop, or the
 * surplus of this host.
 */
import type { Log } from '../../base/log.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { ToWorker } from './messages.ts';

interface HandingSlot {
  readonly worker: { readonly isReady: boolean; send(message: ToWorker): void };
  mqttConnections: number;
}

export class HandOver {
  readonly #slots: readonly HandingSlot[];
  readonly #log: Log;
  /** Workers that have connections to hand over. */
  readonly #handing = new Set<HandingSlot>();
  /** The connections that each worker hands over in a second; undefined before all connections are handed over. */
  #rate: number | undefined;
  #onDone: () => void = () => {};

  constructor(slots: readonly HandingSlot[], log: Log) {
    this.#slots = slots;
    this.#log = log;
  }

  /**
   * Lets the workers close all connections, together at most so many a second. Resolves when none is left, or after
   * `msMax`. A worker that dies meanwhile has none, and hands over again once it is ready.
   */
  all(perSecond: number, msMax: number): Promise<void> {
    const rate = perSecond / this.#slots.length;
    this.#rate = rate;
    return new Promise((resolve) => {
      const stopTimer = systemScheduler.after(msMax, resolve);
      const onDone = () => {
        stopTimer();
        resolve();
      };
      this.#onDone = onDone;
      for (const slot of this.#slots) if (slot.worker.isReady) this.#begin(slot, rate);
      if (this.#handing.size === 0) onDone();
    });
  }

  /**
   * Lets the workers close `count` of `connections`, together so many a second, each worker by its number of them.
   */
  some(count: number, connections: number, perSecond: number): void {
    this.#log.info('mqtt_rebalance', { surplus: count, connections });
    const surplus = Math.min(count, connections);
    let [left, before] = [surplus, connections];
    for (const { worker, mqttConnections } of this.#slots) {
      if (left === 0) return;
      if (!worker.isReady) continue;
      const own = Math.round((left * mqttConnections) / before);
      if (own > 0) worker.send({ kind: 'handOverSome', count: own, perSecond: (perSecond * own) / surplus });
      left -= own;
      before -= mqttConnections;
    }
  }

  /** Called when a worker has become ready. */
  ready(slot: HandingSlot): void {
    if (this.#rate !== undefined) this.#begin(slot, this.#rate);
  }

  /** Called when a worker has handed over all its connections, or has ended. */
  done(slot: HandingSlot): void {
    if (this.#handing.delete(slot) && this.#handing.size === 0) this.#onDone();
  }

  #begin(slot: HandingSlot, perSecond: number): void {
    this.#handing.add(slot);
    slot.worker.send({ kind: 'handOver', perSecond });
  }
}
