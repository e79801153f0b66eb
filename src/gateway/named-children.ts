/** The children of a gateway, as the decoder of its telemetry uses them (`telemetry.ts`). */
import type { Fault } from '../base/errors.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { Spelled, SpelledNames } from './spelled-names.ts';

/** A child of a gateway, as the decoder uses it. The decoder owns all members from `next` on. */
export interface NamedChild extends Spelled {
  /** The number of the device. */
  readonly number: number;
  readonly device: CachedDevice;
  readonly name: string;
  /** False when `name` is not the name of the device any more. */
  readonly isCurrent: boolean;
  /** The child that last followed this child in a message. */
  next: NamedChild | undefined;
  /** The last message that named the child, and the last one that was counted. */
  seen: number;
  charged: number;
  refusal: Fault | undefined;
  noteRefused(reason: 'rate_limit'): void;
}

/** A gateway, as the decoder uses it: a `Gateway`, or the names of one message (`decode-worker.ts`). */
export interface NamedChildren {
  readonly device: CachedDevice;
  /** The children by their names as messages spell them. */
  readonly spelled: SpelledNames<NamedChild>;
  child(name: string): NamedChild | undefined;
  /** Records the refusals of a message for the diagnostics of the children. */
  recordRefusals(refusals: Iterable<[string, Fault]>): void;
}
