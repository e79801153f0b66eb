/**
 * Makes the receipts of a commit, for senders that asked for one. `Ingest` collects the askers while a frame gathers
 * and calls `give` when the frame is durable, before its messages are acknowledged. A commit makes a bounded number of
 * receipts: the other askers are acknowledged without one.
 */
import type { SigningKey } from '../auth/signing-key.ts';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { JournalFrame, Lane } from '../journal/journal.ts';
import { isAway } from '../postgres/postgres-error.ts';
import type { Spans } from '../telemetry/block.ts';
import { RowReader } from '../telemetry/read-block.ts';
import type { Sender } from './backlog-shares.ts';
import { type AckLevel, digestOf, type ReceiptPoint, receiptKeyOf, writeReceipt } from './receipt.ts';
import type { Waiter } from './store-acks.ts';

/** Records of one message: spans [from, to). */
interface SpanRange {
  spans: Readonly<Spans>;
  from: number;
  to: number;
}

interface Asker {
  waiter: Waiter;
  sender: Sender;
  /** Undefined: the message is the whole commit. */
  lane: Lane | undefined;
  records: readonly SpanRange[];
}

/** The askers of one commit, reused by a later one. */
export class Askers {
  readonly list: Asker[] = [];
  readonly #ofSender = new Map<number, number>();

  /** Does nothing above the caps: the message is then acknowledged without a receipt. */
  add(waiter: Waiter, sender: Sender, lane: Lane | undefined, records: readonly SpanRange[]): void {
    const count = this.#ofSender.get(sender.number) ?? 0;
    if (this.list.length >= limits.receiptsPerCommitMax || count >= limits.receiptsPerSenderMax) return;
    this.#ofSender.set(sender.number, count + 1);
    this.list.push({ waiter, sender, lane, records });
  }

  reset(): void {
    if (this.list.length === 0) return;
    this.list.length = 0;
    this.#ofSender.clear();
  }
}

interface ReceiptsDeps {
  signingKey: SigningKey;
  ack: AckLevel;
  clock: Clock;
  log: Log;
}

export class Receipts {
  readonly #deps: ReceiptsDeps;
  #key: Buffer | undefined;
  #reading = false;

  constructor(deps: ReceiptsDeps) {
    this.#deps = deps;
  }

  /** Sets `receipt` of the waiters, while the rows of the commit are in memory. The frames are durable. */
  give({ list }: Askers, frames: readonly JournalFrame[]): void {
    const key = this.#keyNow();
    if (key === undefined) return;
    const journaledTime = this.#deps.clock.now();
    const readers = new Map<JournalFrame, RowReader>();
    for (const { waiter, sender, lane, records } of list) {
      const own = lane === undefined ? frames : frames.filter((frame) => frame.lane === lane);
      const frame = own[0]!;
      let reader = readers.get(frame);
      if (reader === undefined) readers.set(frame, (reader = RowReader.of(Buffer.concat(frame.parts))));
      waiter.receipt = writeReceipt(
        {
          ack: this.#deps.ack,
          tenantId: sender.tenantId,
          deviceId: sender.id,
          device: sender.number,
          order: frame.order,
          lastOrder: own.at(-1)!.order,
          journaledTime,
          ...extentOf(records),
          named: firstPoints(reader, records[0]!),
        },
        key,
      );
    }
  }

  /** Returns undefined while PostgreSQL has not answered since the start; each call then reads the key again. */
  #keyNow(): Buffer | undefined {
    const { signingKey, log } = this.#deps;
    if (this.#key === undefined && signingKey.known !== undefined) this.#key = receiptKeyOf(signingKey.known);
    if (this.#key === undefined && !this.#reading) {
      this.#reading = true;
      signingKey
        .read()
        .catch((error: unknown) => {
          if (!isAway(error)) log.error('signing_key_unread', { reason: messageOf(error) });
        })
        .finally(() => {
          this.#reading = false;
        });
    }
    return this.#key;
  }
}

function extentOf(records: readonly SpanRange[]) {
  const devices = new Set<number>();
  const extent = { points: 0, devices: 0, oldestTs: Number.POSITIVE_INFINITY, newestTs: Number.NEGATIVE_INFINITY };
  for (const { spans, from, to } of records) {
    extent.points += rowsBefore(spans, to) - rowsBefore(spans, from);
    for (let i = from; i < to; i += 1) {
      devices.add(spans.device[i]!);
      const ts = spans.ts[i]!;
      if (ts < extent.oldestTs) extent.oldestTs = ts;
      if (ts > extent.newestTs) extent.newestTs = ts;
    }
  }
  extent.devices = devices.size;
  return extent;
}

/** Returns the first points of the message; all of them are in the first frame. */
function firstPoints(reader: RowReader, { spans, from, to }: SpanRange): ReceiptPoint[] {
  const first = rowsBefore(spans, from);
  const end = Math.min(rowsBefore(spans, to), first + limits.receiptPointsMax);
  const points: ReceiptPoint[] = [];
  for (let row = first; row < end; row += 1) {
    const read = reader.row(row);
    points.push({ device: read.device, key: read.key, ts: read.ts, seq: read.seq, digest: digestOf(read) });
  }
  return points;
}

/** Rows of the spans before span `i`. */
function rowsBefore({ end }: Readonly<Spans>, i: number): number {
  return i === 0 ? 0 : end[i - 1]!;
}
