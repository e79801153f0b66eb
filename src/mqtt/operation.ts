/** What a PUBLISH of a device does: an operation for each topic, and how it answers. */
import { asFault } from '../base/errors.ts';
import type { Waiter } from '../ingest/accept.ts';
import type { Session } from './session.ts';

/**
 * An incoming PUBLISH. It is answered exactly once, by `acknowledge()` or `refuse(fault)`, at any later time; the
 * connection sends PUBACK or PUBREC in order of arrival. For QoS 0 the answer only counts. The object is reused
 * after its answer and must not be kept longer.
 */
export interface Publish extends Waiter {
  readonly topic: string;
  /** A view into what was read: valid until the operation returns. Copy what must live longer. */
  readonly payload: Buffer;
  readonly qos: 0 | 1 | 2;
  readonly session: Session;
}

/**
 * `argument` is the part of the topic after the prefix of the table (`{id}`, or a longer tail); '' for exact topics. A
 * thrown Fault is `refuse(fault)`, so it must come before any answer. Any other throw is a bug and ends the worker,
 * whose shared state may be half changed.
 */
export type Operation = (publish: Publish, argument: string) => void;

/**
 * For operations that wait: acknowledged when `work` resolves, refused when it throws; a bug of one operation ends with
 * it.
 */
export function run(publish: Publish, work: () => Promise<unknown>): void {
  work().then(
    () => publish.acknowledge(),
    (error: unknown) => publish.refuse(asFault(error)),
  );
}
