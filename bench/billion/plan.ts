/**
 * What the gateways of `npm run bench -- billion` send: each device one record for each turn, evenly over one day. So
 * every stored point is known in advance, and readers can judge an answer by its content.
 */

import { dayMs } from '../../src/base/durations.ts';
import { tokenOf } from '../engine-under-load.ts';
import { recordKeys } from '../load/moving-record.ts';
import type { MqttLoad } from '../load/mqtt/mqtt.ts';
import type { BenchSettings } from '../settings.ts';

export const gatewayPrefix = 'billiongateway';

/** The records of a device from one number to before another one. */
export interface Turns {
  from: number;
  to: number;
}

export class DayPlan {
  readonly gateways: number;
  readonly turns: number;
  readonly keys: string[];
  readonly devices: number;
  /** Devices in one message; a gateway sends for its blocks of devices in turn. */
  readonly messageDevices: number;
  readonly firstTs: number;
  readonly #blocks: number;
  readonly #stepMs: number;

  /** The day ends now. Counts are rounded so that every device has the same number of records. */
  constructor({ points, turns, keys, gateways, messageDevices }: BenchSettings['billion'], now: number) {
    const children = Math.max(1, Math.round(points / turns / keys / gateways));
    this.gateways = gateways;
    this.turns = turns;
    this.keys = recordKeys(keys);
    this.messageDevices = Math.min(messageDevices, children);
    this.#blocks = Math.ceil(children / this.messageDevices);
    this.devices = gateways * this.#blocks * this.messageDevices;
    this.#stepMs = Math.max(1, Math.floor(dayMs / turns / this.#blocks));
    this.firstTs = now - turns * this.#turnMs;
  }

  get #turnMs(): number {
    return this.#blocks * this.#stepMs;
  }

  get points(): number {
    return this.pointsUntil(this.turns);
  }

  /** Returns the points of all devices before this turn. */
  pointsUntil(turn: number): number {
    return this.devices * turn * this.keys.length;
  }

  get devicePoints(): number {
    return this.turns * this.keys.length;
  }

  get endTs(): number {
    return this.firstTs + this.turns * this.#turnMs;
  }

  nameOf(device: number): string {
    return `billion-${String(device).padStart(9, '0')}`;
  }

  /** Returns the times of all records of a device, oldest first. */
  timesOf(device: number): number[] {
    const block = Math.floor((device % this.#childrenOfOne) / this.messageDevices);
    return Array.from({ length: this.turns }, (_, turn) => {
      return this.firstTs + block * this.#stepMs + turn * this.#turnMs;
    });
  }

  /** Returns the load of gateways for some turns of each device, with the tokens of `createFleet`. */
  loadOf(port: number, { window, processes }: BenchSettings['billion'], { from, to }: Turns): MqttLoad {
    const clients = Array.from({ length: this.gateways }, (_, gateway) => ({
      token: tokenOf(gatewayPrefix, gateway),
      children: Array.from({ length: this.#childrenOfOne }, (__, n) => this.nameOf(gateway * this.#childrenOfOne + n)),
    }));
    return {
      ...{ host: '127.0.0.1', port, clients, processes, level: 5, rate: 0, warmupSeconds: 0, seconds: 0 },
      ...{ window: Math.min(window, this.#blocks), messageDevices: this.messageDevices, points: this.keys.length },
      ...{ turns: to - from, firstTs: this.firstTs + from * this.#turnMs, stepMs: this.#stepMs },
    };
  }

  get #childrenOfOne(): number {
    return this.#blocks * this.messageDevices;
  }
}
