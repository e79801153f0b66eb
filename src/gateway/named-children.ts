/** The children of a gateway, as the decoder of its telemetry uses them (`telemetry.ts`). */
import type { Fault } from '../base/errors.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';

/** A child of a gateway, as the decoder uses it. The decoder owns all members after `name`. */
export interface NamedChild {
  readonly device: CachedDevice;
  readonly name: string;
  /** False when `name` is not the name of the device any more. */
  readonly isCurrent: boolean;
  bytes: Buffer;
  next: NamedChild | undefined;
  seen: number;
  charged: number;
  refusal: Fault | undefined;
  noteRefused(reason: 'rate_limit'): void;
}

/** A gateway, as the decoder uses it: a `Gateway`, or the names of one message (`decode-worker.ts`). */
export interface NamedChildren {
  readonly device: CachedDevice;
  /** Owned by the decoder: the child named first in the last message. */
  first: NamedChild | undefined;
  child(name: string): NamedChild | undefined;
  /** Records the refusals of a message for the diagnostics of the children. */
  recordRefusals(refusals: Iterable<[string, Fault]>): void;
}
