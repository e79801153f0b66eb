/** The children of a gateway, as the decoder of its telemetry uses them (`telemetry.ts`). */
import type { Fault } from '../base/errors.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { Spelled, SpelledNames } from './spelled-names.ts';

/** A child of a gateway, as the decoder uses it. */
export interface NamedChild extends Spelled {
  readonly device: CachedDevice;
  readonly name: string;
  /** Owned by the decoder: the last message that was counted, and its refusal. */
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
