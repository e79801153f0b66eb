/**
 * Warns of packets that are too large: names the device, the size and the limit, at most once a minute for a device at
 * this worker.
 */
import type { Clock } from '../../base/clock.ts';
import { FifoMap } from '../../base/fifo-map.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { CachedDevice } from '../../device/model/cached-device.ts';

const lineMsMin = 1_100;

interface TooLarge {
  bytes: number;
  bytesMax: number;
  /** Undefined when the packet was not read so far. */
  topic?: string;
}

export class TooLargeLog {
  readonly #clock: Clock;
  readonly #log: Log;
  /** Monotonic time of the last line of a device. */
  readonly #loggedAt = new FifoMap<number, number>(limits.mqttTooLargeLoggedMax);
  #lineAt = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock, log: Log) {
    this.#clock = clock;
    this.#log = log;
  }

  add({ number, id, name }: CachedDevice, { bytes, bytesMax, topic }: TooLarge): void {
    const now = this.#clock.monotonic();
    // The log omits a second line within a second: the device is named with its next packet then.
    if (now - this.#lineAt < lineMsMin) return;
    if (now - (this.#loggedAt.get(number) ?? Number.NEGATIVE_INFINITY) < limits.mqttTooLargeLogMs) return;
    this.#lineAt = now;
    this.#loggedAt.set(number, now);
    this.#log.warn('mqtt_message_too_large', { device: id, name, bytes, bytesMax, topic });
  }
}
