/**
 * Answers of the REST API that may become long: written string by string, kept as bytes, sent at the pace of the
 * reader. The bytes of all such answers have a cap for this worker and a share for each tenant and customer.
 */
import type { Principal } from '../auth/roles.ts';
import { type BudgetOwner, ByteBudget } from '../base/byte-budget.ts';
import { unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { nextTurn } from '../base/loop-turns.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type PlaceOwner, placeOwners } from '../base/places.ts';
import { answerTooLarge } from '../telemetry/latest.ts';
import type { Answer } from '../uws/exchange.ts';
import type { SlicedBody } from '../uws/slices.ts';

/** Characters that are gathered before they become bytes. */
const pieceChars = 64 * 1024;
/** A longer answer is sent in slices. */
const sliceBytes = 256 * 1024;

interface LongAnswerCaps {
  longAnswerBytesMax: number;
  longAnswersBytesMax: number;
  longAnswersTenantBytesMax: number;
  longAnswersCustomerBytesMax: number;
}

export class LongAnswers {
  readonly #caps: LongAnswerCaps;
  readonly #budget: ByteBudget;

  constructor(metrics: Metrics, caps: LongAnswerCaps = limits) {
    this.#caps = caps;
    this.#budget = new ByteBudget(caps.longAnswersBytesMax);
    const help = 'Bytes of long REST answers that their readers have not taken yet.';
    metrics.observed('rest_answer_bytes', help, () => this.#budget.held);
  }

  /** Calls `write`, which may take many turns of the event loop; the answer is everything that `write` added. */
  async json({ tenantId, customerId }: Principal, write: (answer: LongText) => Promise<void>): Promise<Answer> {
    const { longAnswerBytesMax, longAnswersTenantBytesMax, longAnswersCustomerBytesMax } = this.#caps;
    const owners: BudgetOwner[] = [{ name: `tenant ${tenantId}`, bytesMax: longAnswersTenantBytesMax }];
    if (customerId !== null) owners.push({ name: `customer ${customerId}`, bytesMax: longAnswersCustomerBytesMax });
    const text = new LongText(this.#budget, owners, longAnswerBytesMax);
    try {
      await write(text);
      return text.answer(placeOwners(tenantId, customerId));
    } catch (error) {
      text.release();
      throw error;
    }
  }
}

export class LongText {
  readonly #budget: ByteBudget;
  readonly #owners: readonly BudgetOwner[];
  readonly #bytesMax: number;
  readonly #pieces: Buffer[] = [];
  #text = '';
  #bytes = 0;
  /** Bytes that count in the budget. */
  #held = 0;

  constructor(budget: ByteBudget, owners: readonly BudgetOwner[], bytesMax: number) {
    this.#budget = budget;
    this.#owners = owners;
    this.#bytesMax = bytesMax;
  }

  /** Throws the 400 for an answer that is too long, and the 503 when too many long ones are held. */
  add(text: string): void {
    this.#text += text;
    if (this.#text.length >= pieceChars) this.#flush();
  }

  /** Adds the strings, and lets the event loop run in between. */
  async addAll(texts: Iterable<string>): Promise<void> {
    let turnEnd = this.#bytes + sliceBytes;
    for (const text of texts) {
      this.add(text);
      if (this.#bytes < turnEnd) continue;
      turnEnd = this.#bytes + sliceBytes;
      await nextTurn();
    }
  }

  /** `owners`: the owners of its place among the answers that are sent in slices. */
  answer(owners: readonly PlaceOwner[]): Answer {
    const head = { status: 200, contentType: 'application/json' };
    if (this.#bytes === 0) return { ...head, body: this.#text };
    this.#flush();
    if (this.#bytes > sliceBytes) {
      const body: SlicedBody = {
        bytes: this.#bytes,
        owners,
        slice: async (at) => this.#slice(at),
        release: () => this.release(),
      };
      return { ...head, body };
    }
    // The library copies at once the bytes that the socket does not take.
    const body = Buffer.concat(this.#pieces);
    this.release();
    return { ...head, body };
  }

  release(): void {
    this.#budget.release(this.#held, this.#owners);
    this.#held = 0;
    this.#pieces.length = 0;
  }

  #flush(): void {
    const piece = Buffer.from(this.#text);
    this.#text = '';
    if (this.#bytes + piece.length > this.#bytesMax) throw answerTooLarge();
    if (!this.#budget.take(piece.length, this.#owners)) {
      throw unavailable('answers_unsent', 'Too many large answers are being made or sent; try again.');
    }
    this.#bytes += piece.length;
    this.#held += piece.length;
    this.#pieces.push(piece);
  }

  /** Slices are requested in order: bytes before `at` have been sent. */
  #slice(at: number): Buffer {
    let start = this.#bytes - this.#held;
    while (at >= start + this.#pieces[0]!.length) {
      const { length } = this.#pieces.shift()!;
      this.#budget.release(length, this.#owners);
      this.#held -= length;
      start += length;
    }
    return this.#pieces[0]!.subarray(at - start, at - start + sliceBytes);
  }
}
