/**
 * Finds the points of a receipt among the rows that ClickHouse refused: the suspects and the quarantine of each
 * journal, on the disk of its host. A question goes to the workers of all hosts (`bus/gather.ts`). Called by
 * `receipt-states.ts`.
 */
import { Fault, messageOf, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { isObject } from '../base/schema.ts';
import { Turns } from '../base/turns.ts';
import type { Bus } from '../bus/bus.ts';
import { Gather } from '../bus/gather.ts';
import { isCount, isListOf, isText, isWhole } from '../bus/messages.ts';
import type { Quarantine } from '../journal/quarantine.ts';
import type { Suspects } from '../journal/suspects.ts';
import { readBlock } from '../telemetry/read-block.ts';
import { writerOf } from './order-number.ts';

export const refusedStates = ['suspect', 'quarantined'] as const;
type RefusedState = (typeof refusedStates)[number];

/** The rows of one journal directory. */
export interface RefusedRowsOfJournal {
  /** Undefined: the directory has no journal any more, or its writer id is not known. */
  writer: number | undefined;
  suspects: Pick<Suspects, 'list' | 'read'> | undefined;
  quarantine: Pick<Quarantine, 'rowsOf'>;
}

/** A point of one frame. */
interface PointOfFrame {
  device: number;
  key: string;
  ts: number;
  seq: number;
}

interface RefusedPoint {
  state: RefusedState;
  /** Quotes no error of ClickHouse: these may contain names of the installation. */
  reason: string;
}

export interface FoundPoints {
  /** True: the process that owns the journal has answered, so the points that are not found are not there. */
  isComplete: boolean;
  /** The refused points by their places in the question. */
  points: Map<number, RefusedPoint>;
}

/** Points of the frame with this order number, which is decimal. */
interface Question {
  order: string;
  points: PointOfFrame[];
}

interface Answer {
  isOwner: boolean;
  found: (RefusedPoint & { place: number })[];
}

interface RefusedPointsDeps {
  bus: Bus;
  log: Log;
  /** Returns the journals of this worker. */
  journals: () => RefusedRowsOfJournal[];
}

export class RefusedPoints {
  readonly #deps: RefusedPointsDeps;
  readonly #gather: Gather<Question, Answer>;
  /** Senders of the messages take turns: the question does not name the tenant. */
  readonly #turns = new Turns({
    atOnceMax: limits.refusedAnswersAtOnceMax,
    waitingMax: limits.refusedAnswersWaitingMax,
    refusal: () => unavailable('rest_calls', 'Too many questions about refused rows at once; try again.'),
  });
  /** Monotonic time of the last log line about rows that cannot be read. */
  #loggedAt = Number.NEGATIVE_INFINITY;

  constructor(deps: RefusedPointsDeps) {
    this.#deps = deps;
    const answer = (question: Question) => this.#answer(question);
    this.#gather = new Gather({ bus: deps.bus, channel: 'refused-points', isQuestion, isAnswer, answer });
  }

  async start(): Promise<void> {
    await this.#gather.start();
  }

  stop(): void {
    this.#gather.stop();
  }

  async find(order: bigint, points: readonly PointOfFrame[]): Promise<FoundPoints> {
    const asked = points.map(({ device, key, ts, seq }) => ({ device, key, ts, seq }));
    const { answers } = await this.#gather.ask({ order: order.toString(), points: asked });
    const found = answers.flatMap((answer) => answer.found);
    return {
      isComplete: answers.some(({ isOwner }) => isOwner),
      points: new Map(found.map(({ place, state, reason }) => [place, { state, reason }])),
    };
  }

  /** A worker with too many questions counts as one that does not answer. */
  async #answer(question: Question): Promise<Answer> {
    const beganMs = performance.now();
    try {
      return await this.#turns.run(ownerOf(question), null, async () => {
        // No worker waits any longer for the answer.
        return performance.now() - beganMs > limits.gatherMsMax ? noAnswer() : await this.#search(question);
      });
    } catch (error) {
      if (error instanceof Fault) return noAnswer();
      throw error;
    }
  }

  /** A directory that cannot be read counts as a worker that does not answer. */
  async #search({ order, points }: Question): Promise<Answer> {
    const answer = noAnswer();
    const asked = BigInt(order);
    for (const journal of this.#deps.journals()) {
      try {
        answer.found.push(...(await findIn(journal, asked, points)));
        if (journal.writer === writerOf(asked)) answer.isOwner = true;
      } catch (error) {
        this.#logUnreadable(messageOf(error));
      }
    }
    return answer;
  }

  #logUnreadable(reason: string): void {
    const now = performance.now();
    if (now - this.#loggedAt < limits.refusedUnreadableLogMs) return;
    this.#loggedAt = now;
    this.#deps.log.warn('quarantine_unreadable', { reason });
  }
}

function ownerOf({ points: [first] }: Question): string {
  return `device ${first?.device ?? 0}`;
}

function noAnswer(): Answer {
  return { isOwner: false, found: [] };
}

/** Reads suspects first: a row that moves to the quarantine meanwhile is found there. */
async function findIn(
  { suspects, quarantine }: RefusedRowsOfJournal,
  order: bigint,
  points: readonly PointOfFrame[],
): Promise<Answer['found']> {
  const suspicious = suspects?.list().filter((suspect) => suspect.order === order) ?? [];
  const payloads = (await suspects?.read(suspicious)) ?? [];
  const rows = [
    ...suspicious.map(({ reason }, i) => ({ state: 'suspect' as const, reason, payload: payloads[i] })),
    ...(await quarantine.rowsOf(order)).map((row) => ({ state: 'quarantined' as const, ...row })),
  ];
  return rows.flatMap(({ state, reason, payload }) =>
    payload ? placesIn(payload, order, points).map((place) => ({ place, state, reason: codeOf(reason) })) : [],
  );
}

/** Bytes that are not a block have no points. */
function placesIn(payload: Uint8Array, order: bigint, points: readonly PointOfFrame[]): number[] {
  try {
    const rows = readBlock(payload).filter((row) => row.order === order);
    return [...points.keys()].filter((place) => rows.some((row) => isPoint(row, points[place]!)));
  } catch {
    return [];
  }
}

function isPoint(row: PointOfFrame, { device, key, ts, seq }: PointOfFrame): boolean {
  return row.device === device && row.key === key && row.ts === ts && row.seq === seq;
}

/** The reason of a refused row begins with the code of ClickHouse; 0 = no server answered. */
function codeOf(reason: string): string {
  const code = Number.parseInt(reason, 10);
  return code > 0 ? `ClickHouse error ${code}` : 'ClickHouse did not answer to the row';
}

function isQuestion(value: unknown): value is Question {
  if (!isObject(value)) return false;
  const { order, points } = value;
  if (!isText(order) || !/^\d{1,19}$/.test(order)) return false;
  return isListOf(points, isPointOfFrame) && points.length <= limits.receiptPointsMax;
}

function isPointOfFrame(value: unknown): value is PointOfFrame {
  if (!isObject(value)) return false;
  const { device, key, ts, seq } = value;
  return isWhole(device) && isText(key) && isWhole(ts) && isWhole(seq);
}

function isAnswer(value: unknown): value is Answer {
  return isObject(value) && typeof value['isOwner'] === 'boolean' && isListOf(value['found'], isFound);
}

function isFound(value: unknown): value is Answer['found'][number] {
  if (!isObject(value)) return false;
  const { place, state, reason } = value;
  return isCount(place) && refusedStates.some((known) => known === state) && isText(reason);
}
