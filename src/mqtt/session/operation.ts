/** The operations that a PUBLISH of a device starts, one for each topic, and their answers. */
import { asFault } from '../../base/errors.ts';
import type { Waiter } from '../../ingest/accept.ts';
import type { Session } from './session.ts';

/**
 * An incoming PUBLISH. It is answered exactly once, by `acknowledge()` or `refuse(fault)`, at any later time. The
 * connection sends PUBACK or PUBREC in order of arrival. For QoS 0 the answer is only counted. The object is reused
 * after its answer and must not be kept longer.
 */
export interface Publish extends Waiter {
  readonly topic: string;
  /** A view of the received bytes, valid until the operation returns. Bytes that are needed longer must be copied. */
  readonly payload: Buffer;
  /** True when the payload is a buffer of its own, which holds room and stays valid until the answer. */
  readonly isOwned: boolean;
  readonly qos: 0 | 1 | 2;
  readonly session: Session;
  /** The time of the read that received the last byte: one reading of the clock serves all messages of a read. */
  readonly readAt: number;
}

/**
 * `argument` is the part of the topic after the prefix of the table (`{id}`, or a longer rest); '' for exact topics. A
 * thrown Fault acts as `refuse(fault)`, so it must be thrown before any answer. Any other error is a bug and ends the
 * worker, whose shared state may be inconsistent.
 */
export type Operation = (publish: Publish, argument: string) => void;

/**
 * Runs an asynchronous operation: acknowledges when `work` resolves, refuses when it rejects. A bug ends only this
 * operation.
 */
export function run(publish: Publish, work: () => Promise<unknown>): void {
  work().then(
    () => publish.acknowledge(),
    (error: unknown) => publish.refuse(asFault(error)),
  );
}
