/**
 * The devices of a world, and the account of what the store must have afterwards. The value of each record is its
 * number, so a row that comes back names its record.
 */
import { dayMs } from '../../src/base/durations.ts';
import type { AckLevel } from '../../src/ingest/accept.ts';
import type { BlockRow } from '../../src/telemetry/read-block.ts';
import type { Random } from '../harness/random.ts';
import { badText, type Store } from './store.ts';
import { beginsAt, type VirtualTime } from './virtual-time.ts';
import type { Outcome, Worker, WorldDevice } from './worker.ts';

interface Message {
  body: string;
  /** The records of the message. */
  points: { key: string; ts: number | undefined; n: number }[];
}

interface Sent {
  n: number;
  key: string;
  ts: number | undefined;
  outcome: Outcome;
}

type Habit = 'stamped' | 'days' | 'wide' | 'turns' | 'again' | 'bad' | 'fleet';
export const habits: readonly Habit[] = ['stamped', 'stamped', 'days', 'wide', 'turns', 'turns', 'again', 'bad'];

/**
 * Devices of a fleet that is large enough for records: the engine samples every 61st device (`SampledRecords`), so all
 * of these are sampled.
 */
const fleetDevices = 200;
const sampledOf = 61;
/** Each key is in several lists. */
const keysOfFleet = [
  ['a', 'b', 'c'],
  ['c', 'd', 'a'],
];

interface SenderWorld {
  time: VirtualTime;
  random: Random;
  stores: readonly Store[];
  ack: AckLevel;
}

export class Sender {
  readonly device: WorldDevice;
  readonly habit: Habit;
  readonly #sent: Sent[] = [];
  /** Records that were acknowledged before they were stored, though the acknowledgement says that they are. */
  readonly #early: number[] = [];
  #next = 1;

  constructor(number: number, habit: Habit) {
    this.habit = habit;
    this.device = { id: `device-${number}`, number, tenantId: 'mill', customerId: null };
  }

  /** True when later writes must count as later. */
  get needsOrder(): boolean {
    return this.habit === 'turns' || this.habit === 'again';
  }

  get hasSentBad(): boolean {
    return this.#sent.some(({ key }) => key === 'bad');
  }

  get acknowledged(): number {
    return this.#sent.filter(({ outcome }) => outcome === 'acknowledged').length;
  }

  /** Sends messages until `until`. Each goes to any of the workers, after the answer to the message before it. */
  async send(world: SenderWorld, workers: readonly Worker[], until: number): Promise<void> {
    const { time, random } = world;
    while (time.passed < until) {
      await time.sleep(random.between(1, random.next() < 0.1 ? 1_500 : 150));
      await this.sendOnce(world, () => random.pick(workers));
    }
  }

  /** Sends one message and waits for its answer. */
  async sendOnce(world: SenderWorld, workerOf: () => Worker): Promise<void> {
    const { time, random, stores, ack } = world;
    const { body, points } = this.#message(random);
    const outcome = await workerOf().send(body, this.device);
    const isStored = (n: number) => stores.some((store) => store.has(this.device.number, n));
    const isEarly = ({ key, n }: Message['points'][number]) => key !== 'bad' && !isStored(n);
    if (ack === 'store' && outcome === 'acknowledged') this.#early.push(...points.filter(isEarly).map(({ n }) => n));
    // The answer takes time to reach the device.
    await time.sleep(random.between(0.1, 2));
    for (const point of points) this.#sent.push({ ...point, outcome });
  }

  /** Returns what is wrong with the rows of this device. */
  faults(rows: readonly BlockRow[]): string[] {
    const faults: string[] = [];
    const say = (text: string) => faults.push(`device ${this.device.number} (${this.habit}): ${text}`);
    for (const n of this.#early) say(`record ${n} was acknowledged before it was stored`);
    const byNumber = new Map<number, BlockRow>();
    for (const row of rows) {
      const n = Number(row.int);
      if (row.text === badText) say(`a bad row is stored`);
      else if (byNumber.has(n)) say(`record ${n} is stored twice`);
      else byNumber.set(n, row);
    }
    const sent = new Map(this.#sent.map((record) => [record.n, record]));
    for (const n of byNumber.keys()) if (!sent.has(n) && n >= this.#next) say(`record ${n} was never sent`);
    if (this.habit === 'again') return [...faults, ...this.#faultsOfRepeated(rows)];
    for (const { n, key, ts, outcome } of this.#sent) {
      const row = byNumber.get(n);
      if (!row) {
        if (outcome === 'acknowledged' && key !== 'bad') say(`record ${n} was acknowledged and is lost`);
      } else if (ts !== undefined && row.ts !== ts) say(`record ${n} is stored at another time`);
    }
    if (this.habit === 'turns') faults.push(...this.#faultsOfOrder(rows));
    return faults;
  }

  /** Each record was sent after the answer to the one before, so acknowledged ones are in the order of sending. */
  #faultsOfOrder(rows: readonly BlockRow[]): string[] {
    const acknowledged = new Set(this.#sent.filter(({ outcome }) => outcome === 'acknowledged').map(({ n }) => n));
    const inOrder = rows
      .filter(({ int }) => acknowledged.has(Number(int)))
      .sort((a, b) => a.ts - b.ts || a.seq - b.seq);
    const faults: string[] = [];
    for (let i = 1; i < inOrder.length; i += 1) {
      const [before, after] = [Number(inOrder[i - 1]!.int), Number(inOrder[i]!.int)];
      if (before > after) faults.push(`device ${this.device.number}: record ${after} is stored after ${before}`);
    }
    return faults;
  }

  /** One point, written again and again: the last acknowledged write stays, or a later one that got no answer. */
  #faultsOfRepeated(rows: readonly BlockRow[]): string[] {
    const last = this.#sent.findLast(({ outcome }) => outcome === 'acknowledged');
    if (!last) return [];
    const stored = rows.map(({ int }) => Number(int));
    const isRight = stored.length === 1 && stored[0]! >= last.n;
    return isRight ? [] : [`device ${this.device.number}: has ${stored.join(', ')}, and ${last.n} was the last write`];
  }

  #message(random: Random): Message {
    const record = (ts: number | undefined, key = 'v') => ({ key, ts, n: this.#next++ });
    const near = () => beginsAt - 3_600_000 + this.#next * 7;
    if (this.habit === 'turns') return messageOf([record(undefined)]);
    if (this.habit === 'again') return messageOf([record(beginsAt - 1000)]);
    if (this.habit === 'fleet') {
      // No two messages have one time, and some are older than the message before them.
      const ts = random.next() < 0.5 ? undefined : near() - random.below(3) * 7_000_001;
      return messageOf(random.pick(keysOfFleet).map((key) => record(ts, key)));
    }
    if (this.habit === 'stamped') {
      return messageOf(Array.from({ length: 1 + random.below(4) }, () => record(near())));
    }
    if (this.habit === 'bad')
      return messageOf([record(near()), ...(random.next() < 0.05 ? [record(near(), 'bad')] : [])]);
    const days = this.habit === 'days' ? 1 + random.below(20) : random.next() < 0.1 ? 101 + random.below(200) : 3;
    return messageOf(Array.from({ length: days }, (_, day) => record(near() - (day + random.below(3)) * dayMs)));
  }
}

function messageOf(points: Message['points']): Message {
  const [{ ts, key }] = points as [Message['points'][number]];
  if (key !== 'v') {
    // A record of a fleet has several keys.
    const values = Object.fromEntries(points.map((point) => [point.key, point.n]));
    return { body: JSON.stringify(ts === undefined ? values : { ts, values }), points };
  }
  const elements = points.map(({ key, ts, n }) => {
    const values = key === 'bad' ? `{"bad":"${badText}"}` : `{"v":${n}}`;
    return ts === undefined ? values : `{"ts":${ts},"values":${values}}`;
  });
  return { body: elements.length === 1 ? elements[0]! : `[${elements.join(',')}]`, points };
}

export function newFleet(): Sender[] {
  return Array.from({ length: fleetDevices }, (_, n) => new Sender((n + 1) * sampledOf, 'fleet'));
}

/** Sends messages of all devices of the fleet at once until `until`, those of one time over the same worker. */
export async function sendFleet(
  world: SenderWorld,
  fleet: readonly Sender[],
  workers: readonly Worker[],
  until: number,
): Promise<void> {
  const { time, random } = world;
  while (time.passed < until) {
    await time.sleep(random.between(100, 1_200));
    const worker = random.pick(workers);
    await Promise.all(fleet.map((sender) => sender.sendOnce(world, () => worker)));
  }
}
