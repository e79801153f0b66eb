/**
 * What a generator process counts: acknowledged and refused messages, and their latency, in all, in the measured time
 * and in each second. The parent receives each second when it has ended, for the live view and the charts.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Counts, shortReason } from './counts.ts';
import { secondNote, Tenths } from './generator-process.ts';
import { Histogram } from './histogram.ts';
import type { ProcessResult } from './processes.ts';

/** One second of one process. */
export interface ProcessSecond {
  /** 0 = the first second of the run. */
  n: number;
  acknowledged: number;
  refused: Counts;
  /** Connections that broke. */
  broken: number;
  /** Messages that were due and found no free connection, at the end of the second. */
  waiting: number;
  /** Messages without an answer yet, at the end of the second. */
  inFlight: number;
  /** Of the histogram: index and count in turn, without those of zero. */
  counts: number[];
  maxMicroseconds: number;
}

interface MeasuredTime {
  /** Of the ramp and the warm-up. */
  leadMs: number;
  measured(): Promise<void>;
  /** Resolves when the load is ended before its time. */
  stopped: Promise<void>;
}

const secondMs = 1_000;
/** Reasons that are counted apart: a server may write another sentence each time. */
const reasonsMax = 30;

export class Counting {
  readonly #waiting: () => number;
  readonly #inFlight: () => number;
  readonly #histogram = new Histogram();
  readonly #sentLate = new Histogram();
  readonly #refused: Counts = {};
  #second = new Histogram();
  #secondRefused: Counts = {};
  #secondAcknowledged = 0;
  #secondBroken = 0;
  #seconds = 0;
  #timer: NodeJS.Timeout | undefined;
  #accepted = 0;
  #acknowledgedAt = 0;
  #broken = 0;
  #unsure = 0;
  #unanswered = 0;
  #measured = 0;
  #measuredFrom = 0;
  #measuredUntil = Number.POSITIVE_INFINITY;
  #measuredMs = 0;
  #unsent = 0;
  #isMeasuring = false;
  #tenths = new Tenths();
  #cpuAtStart = process.cpuUsage();
  #startedAt = 0;

  /** `waiting`: how many messages are due and not sent. `inFlight`: how many were sent and have no answer. */
  constructor(waiting: () => number, inFlight: () => number) {
    this.#waiting = waiting;
    this.#inFlight = inFlight;
  }

  /** Called when the first message leaves. Returns that moment. */
  begin(): number {
    this.#tenths = new Tenths();
    this.#cpuAtStart = process.cpuUsage();
    this.#startedAt = performance.now();
    this.#timer = setInterval(() => this.#endSecond(), secondMs);
    return this.#startedAt;
  }

  /**
   * Measures after `leadMs`, until `measured` ends. A load is stopped when nothing is acknowledged any more: then the
   * measured time ends with the last acknowledgement.
   */
  async measure({ leadMs, measured, stopped }: MeasuredTime): Promise<void> {
    let isStopped = false;
    const stop = stopped.then(() => {
      isStopped = true;
    });
    await Promise.race([sleep(leadMs), stop]);
    this.beginMeasuring();
    if (!isStopped) await Promise.race([measured(), stop]);
    if (isStopped) this.#endMeasuringAt(Math.max(this.#acknowledgedAt, this.#measuredFrom));
    else this.endMeasuring();
  }

  beginMeasuring(): void {
    this.#measuredFrom = performance.now();
    this.#isMeasuring = true;
  }

  endMeasuring(): void {
    this.#endMeasuringAt(performance.now());
  }

  /** A message that was due at `dueAt` leaves. It was late by a wait of the generator, or for a free connection. */
  sent(dueAt: number, now: number): void {
    if (this.#isMeasuring) this.#sentLate.record((now - dueAt) * 1000);
  }

  /**
   * A message that was due at `dueAt` is acknowledged. The latency of one that was due in the measured time counts also
   * after that time, so that a server cannot hide a pause at the end.
   */
  acknowledged(dueAt: number, now: number): void {
    this.#accepted += 1;
    this.#acknowledgedAt = now;
    this.#secondAcknowledged += 1;
    this.#tenths.add(now);
    const microseconds = (now - dueAt) * 1000;
    this.#second.record(microseconds);
    if (this.#isMeasuring) this.#measured += 1;
    else if (this.#measuredMs === 0 || dueAt >= this.#measuredUntil) return;
    this.#histogram.record(microseconds);
  }

  /** A reason is a word or a status, and what the server says of it after a colon, as in `429: Slow down.` */
  refuse(what: string | number): void {
    const isKnown = what in this.#refused || Object.keys(this.#refused).length < reasonsMax;
    const reason = isKnown ? what : shortReason(String(what));
    this.#refused[reason] = (this.#refused[reason] ?? 0) + 1;
    this.#secondRefused[reason] = (this.#secondRefused[reason] ?? 0) + 1;
  }

  /** A connection broke, with so many messages in flight. */
  breakOff(messages: number): void {
    this.#broken += 1;
    this.#secondBroken += 1;
    this.#unsure += messages;
  }

  /** So many messages were still in flight when the wait for answers ended. */
  giveUp(messages: number): void {
    this.#unanswered += messages;
    this.#unsure += messages;
  }

  /** Called once, when the last answer has come. */
  end(): ProcessResult {
    clearInterval(this.#timer);
    const cpu = process.cpuUsage(this.#cpuAtStart);
    return {
      accepted: this.#accepted,
      measured: this.#measured,
      measuredMs: this.#measuredMs,
      refused: this.#refused,
      broken: this.#broken,
      unsure: this.#unsure,
      unanswered: this.#unanswered,
      unsent: this.#unsent,
      counts: [...this.#histogram.counts],
      sentLateCounts: [...this.#sentLate.counts],
      maxMicroseconds: this.#histogram.max,
      cpuMs: (cpu.user + cpu.system) / 1000,
      elapsedMs: performance.now() - this.#startedAt,
      dueMs: this.#measuredUntil - this.#startedAt,
      tenths: this.#tenths.counts,
      startedAtMs: this.#tenths.startedAtMs,
    };
  }

  #endMeasuringAt(at: number): void {
    this.#isMeasuring = false;
    this.#measuredUntil = at;
    this.#measuredMs = at - this.#measuredFrom;
    this.#unsent = this.#waiting();
  }

  #endSecond(): void {
    const counts: number[] = [];
    this.#second.counts.forEach((count, index) => {
      if (count > 0) counts.push(index, count);
    });
    const second: ProcessSecond = {
      n: this.#seconds,
      acknowledged: this.#secondAcknowledged,
      refused: this.#secondRefused,
      broken: this.#secondBroken,
      waiting: this.#waiting(),
      inFlight: this.#inFlight(),
      counts,
      maxMicroseconds: this.#second.max,
    };
    process.send!({ [secondNote]: second });
    this.#seconds += 1;
    this.#second = new Histogram();
    this.#secondAcknowledged = 0;
    this.#secondRefused = {};
    this.#secondBroken = 0;
  }
}
