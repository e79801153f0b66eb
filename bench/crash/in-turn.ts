/**
 * Senders of messages without a `ts`, which wait for each acknowledgement and use connections of several workers in
 * turn. The account knows which message followed which, and the true time of each. The embedded PostgreSQL keeps the
 * true time when the engine's clock is set, as a database on another host does, and the engine follows the database's
 * clock.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Connection, telemetryRequest } from './connection.ts';
import { Fate, stretches } from './ledger.ts';

const reconnectMs = 20;
/** The values of one sender begin at its number times this. */
const valuesOfSender = 1_000_000_000;
export const turnKey = 'turn';

interface InTurnOptions {
  port: number;
  tokens: string[];
  /** Senders of one device, and the connections that each sender uses in turn. */
  senders: number;
  connections: number;
  /** Messages/s of one device. */
  rate: number;
  /** Messages of one device for which the account has room. */
  messagesMax: number;
  /** Changes when the engine's clock is set; -1 while a change may be half known. */
  clockEpoch: () => number;
}

export interface TurnRow {
  ts: number;
  value: number;
}

export interface TurnVerdict {
  acknowledged: number;
  /** Messages that were acknowledged and are not in the store: another message took their place, or they were lost. */
  missing: number;
  /** The times at which the missing ones were acknowledged, by sender. */
  missingTimes: string[];
  twice: number;
  unknown: number;
  refusedButStored: number;
  /** Neighbours of one sender, within one setting of the clock, in the wrong order. */
  disordered: number;
  /** Points in the wrong order across settings of the clock, for which there is no promise. */
  disorderedBySteps: number;
  /**
   * The largest distance of a time from the interval between sending and acknowledgement, except right after a clock
   * setting.
   */
  aheadMsMax: number;
  behindMsMax: number;
  /** Devices whose latest value is not the newest point of the history. */
  latestWrong: number;
}

class Sender {
  readonly fates: Uint8Array;
  readonly sentAt: Float64Array;
  readonly answeredAt: Float64Array;
  readonly epochs: Int32Array;
  count = 0;

  constructor(room: number) {
    this.fates = new Uint8Array(room);
    this.sentAt = new Float64Array(room);
    this.answeredAt = new Float64Array(room);
    this.epochs = new Int32Array(room);
  }
}

export class InTurn {
  readonly #options: InTurnOptions;
  /** The sender s of device d is at d * senders + s. */
  readonly #senders: Sender[];
  readonly #loops: Promise<void>[];
  #stopping = false;
  readonly answers: Record<number, number> = {};

  constructor(options: InTurnOptions) {
    this.#options = options;
    const { tokens, senders, messagesMax } = options;
    const room = Math.ceil(messagesMax / senders);
    this.#senders = Array.from({ length: tokens.length * senders }, () => new Sender(room));
    this.#loops = this.#senders.map((sender, n) => this.#loop(sender, n));
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await Promise.all(this.#loops);
  }

  async #loop(sender: Sender, number: number): Promise<void> {
    const { port, tokens, senders, connections: count, rate, clockEpoch } = this.#options;
    const token = tokens[Math.floor(number / senders)]!;
    const pauseMs = (senders * 1000) / rate;
    const connections = Array.from({ length: count }, () => new Connection(port));
    while (!this.#stopping && sender.count < sender.fates.length) {
      const startedAt = performance.now();
      const connection = connections[sender.count % count]!;
      if (!(await connection.open())) {
        await sleep(reconnectMs);
        continue;
      }
      const n = sender.count;
      sender.count += 1;
      sender.fates[n] = Fate.unanswered;
      const epoch = clockEpoch();
      sender.sentAt[n] = Date.now();
      const body = `{"${turnKey}":${number * valuesOfSender + n}}`;
      const status = await connection.ask(telemetryRequest(token, body));
      sender.answeredAt[n] = Date.now();
      sender.epochs[n] = clockEpoch() === epoch ? epoch : -1;
      this.answers[status] = (this.answers[status] ?? 0) + 1;
      if (status === 200) sender.fates[n] = Fate.acknowledged;
      else if (status !== 0) sender.fates[n] = Fate.refused;
      await sleep(Math.max(0, pauseMs - (performance.now() - startedAt)));
    }
    for (const connection of connections) connection.close();
  }

  emptyVerdict(): TurnVerdict {
    return {
      acknowledged: this.#senders.reduce(
        (sum, { fates }) => sum + fates.filter((fate) => fate === Fate.acknowledged).length,
        0,
      ),
      missing: 0,
      missingTimes: [],
      twice: 0,
      unknown: 0,
      refusedButStored: 0,
      disordered: 0,
      disorderedBySteps: 0,
      aheadMsMax: 0,
      behindMsMax: 0,
      latestWrong: 0,
    };
  }

  /** Judges one device: all its rows in the order in which a reader gets them, and its latest value. */
  check(device: number, rows: TurnRow[], latest: TurnRow | undefined, verdict: TurnVerdict): void {
    const { senders } = this.#options;
    const places = Array.from({ length: senders }, (_, s) =>
      new Int32Array(this.#senders[device * senders + s]!.count).fill(-1),
    );
    rows.forEach(({ value }, place) => {
      const s = Math.floor(value / valuesOfSender) - device * senders;
      const n = value % valuesOfSender;
      if (places[s]?.[n] === undefined) verdict.unknown += 1;
      else if (places[s][n] !== -1) verdict.twice += 1;
      else places[s][n] = place;
    });
    const newest = rows.at(-1);
    if (newest && (newest.ts !== latest?.ts || newest.value !== latest.value)) verdict.latestWrong += 1;
    places.forEach((ofSender, s) => {
      const sender = this.#senders[device * senders + s]!;
      checkSender(sender, ofSender, rows, verdict);
      const missing = sender.answeredAt.filter((_, n) => sender.fates[n] === Fate.acknowledged && ofSender[n] === -1);
      verdict.missing += missing.length;
      verdict.missingTimes.push(...stretches(missing, `device ${device}, sender ${s}`));
    });
  }
}

function checkSender(sender: Sender, places: Int32Array, rows: TurnRow[], verdict: TurnVerdict): void {
  let before = -1;
  let epochBefore = -1;
  for (let n = 0; n < sender.count; n += 1) {
    const place = places[n]!;
    const fate = sender.fates[n];
    if (fate === Fate.refused && place !== -1) verdict.refusedButStored += 1;
    if (fate !== Fate.acknowledged) continue;
    if (place === -1) continue;
    const epoch = sender.epochs[n]!;
    if (place < before) {
      if (epoch !== -1 && epoch === epochBefore) verdict.disordered += 1;
      else verdict.disorderedBySteps += 1;
    }
    before = place;
    epochBefore = epoch;
    if (epoch === -1) continue;
    const { ts } = rows[place]!;
    verdict.aheadMsMax = Math.max(verdict.aheadMsMax, ts - sender.answeredAt[n]!);
    verdict.behindMsMax = Math.max(verdict.behindMsMax, sender.sentAt[n]! - ts);
  }
}
