/**
 * Warns of packets that are too large: names the device, the size and the limit, at most once a minute for a device at
 * this worker.
 */
import type { Clock } from '../../base/clock.ts';
import { FifoMap } from '../../base/fifo-map.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { CachedDevice } from '../../device/model/cached-device.ts';

/** More than the second in which the log writes one line of a repeated event. */
const lineMsMin = 1_100;

interface TooLarge {
  bytes: number;
  bytesMax: number;
  /** Undefined when the packet ended before its topic was read. */
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
    // The log would only count this line. The device is named with its next packet instead.
    if (now - this.#lineAt < lineMsMin) return;
    if (now - (this.#loggedAt.get(number) ?? Number.NEGATIVE_INFINITY) < limits.mqttTooLargeLogMs) return;
    this.#lineAt = now;
    this.#loggedAt.set(number, now);
    this.#log.warn('mqtt_message_too_large', { device: id, name, bytes, bytesMax, topic });
  }
}
