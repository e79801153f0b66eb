/**
 * Runs hosts and workers of the real classes in virtual time, under faults that a seed chooses, and returns the
 * promises that were broken. The same plan gives the same run.
 */
import { Random } from '../harness/random.ts';
import { habits, Sender } from './senders.ts';
import { isLater, type Mood, Store } from './store.ts';
import { VirtualTime } from './virtual-time.ts';
import { Worker } from './worker.ts';

type FaultKind = 'kill' | 'power' | 'store' | 'lying store' | 'disk error' | 'disk full' | 'slow disk';

/** A fault of a plan. Each has a seed of its own, so that a fault stays the same when others are left out. */
interface PlannedFault {
  at: number;
  kind: FaultKind;
  seed: number;
}

export interface Plan {
  seed: number;
  hosts: number;
  workers: number;
  ack: 'journal' | 'store';
  /** The largest error of a host's clock. */
  skewMsMax: number;
  sendMs: number;
  faults: PlannedFault[];
}

interface WorldResult {
  faults: string[];
  acknowledged: number;
  events: string[];
}

const healMsMax = 4 * 3_600_000;
const eventsMax = 60;
const codes = [241, 252, 1000, 1001, 225, 243, 202, 159, 999, 60, 733, 48];

export function planOf(seed: number): Plan {
  const random = new Random(seed);
  const sendMs = 1_000 + random.below(3_500);
  const kinds: FaultKind[] = [
    'kill',
    'kill',
    'power',
    'store',
    'store',
    'store',
    'disk error',
    'disk full',
    'slow disk',
  ];
  const faults = Array.from({ length: random.below(14) }, () => ({
    at: random.below(sendMs),
    kind: random.pick(kinds),
    seed: random.below(2 ** 31),
  }));
  const ack = random.next() < 0.25 ? 'store' : 'journal';
  const skewMsMax = random.next() < 0.5 ? 0 : 400;
  return { seed, hosts: 1 + random.below(3), workers: 1 + random.below(3), ack, skewMsMax, sendMs, faults };
}

export async function runWorld(plan: Plan): Promise<WorldResult> {
  const random = new Random(plan.seed ^ 0x5eed);
  // Waits after failures draw from `Math.random` (`ship/backoff.ts`).
  const systemRandom = Math.random;
  Math.random = () => random.next();
  try {
    return await new World(plan, random).run();
  } finally {
    Math.random = systemRandom;
  }
}

/** Returns the plan without the faults that the failure does not need. */
export async function shrink(plan: Plan): Promise<Plan> {
  let least = plan;
  for (const fault of plan.faults) {
    const without = { ...least, faults: least.faults.filter((other) => other !== fault) };
    if ((await runWorld(without)).faults.length > 0) least = without;
  }
  return least;
}

class World {
  readonly #plan: Plan;
  readonly #random: Random;
  readonly #time: VirtualTime;
  readonly #store: Store;
  /** Workers by host. */
  readonly #hosts: Worker[][];
  readonly #senders: Sender[];
  readonly #events: string[] = [];

  constructor(plan: Plan, random: Random) {
    this.#plan = plan;
    this.#random = random;
    this.#time = new VirtualTime(new Random(plan.seed ^ 0x71e));
    this.#store = new Store(this.#time, random);
    let writer = 0;
    this.#hosts = Array.from({ length: plan.hosts }, () => {
      const { ack, workers, skewMsMax } = plan;
      const skewMs = random.between(-skewMsMax, skewMsMax);
      return Array.from({ length: workers }, () => {
        writer += 1;
        const log = (line: string) => this.#note(line);
        return new Worker({ time: this.#time, random, store: this.#store, writer, skewMs, ack, log });
      });
    });
    this.#senders = habits.map((habit, n) => new Sender(n + 1, habit));
  }

  async run(): Promise<WorldResult> {
    const { sendMs, faults } = this.#plan;
    const workers = this.#hosts.flat();
    for (const worker of workers) worker.start();
    for (const fault of faults) this.#time.at(fault.at, () => this.#strike(fault));
    let sending = this.#senders.length;
    for (const sender of this.#senders) {
      // Hosts promise the order of writes as far as their clocks agree.
      const known = sender.needsOrder && this.#plan.skewMsMax > 0 ? this.#random.pick(this.#hosts) : workers;
      const world = { time: this.#time, random: this.#random, store: this.#store, ack: this.#plan.ack };
      void sender.send(world, known, sendMs).then(() => {
        sending -= 1;
      });
    }
    await this.#time.run(() => sending === 0, sendMs + 60_000);
    this.#heal(workers);
    const isStored = () => workers.every(({ isEmpty }) => isEmpty);
    const isDone = sending === 0 && (await this.#time.run(isStored, this.#time.passed + healMsMax));
    const found = isDone ? this.#check(workers) : [`senders without an answer: ${sending}; ${this.#stuck(workers)}`];
    const acknowledged = this.#senders.reduce((sum, sender) => sum + sender.acknowledged, 0);
    return { faults: found, acknowledged, events: this.#events.slice(-eventsMax) };
  }

  #stuck(workers: readonly Worker[]): string {
    const names = workers.filter(({ isEmpty }) => !isEmpty).map(({ name }) => name);
    return `rows are not stored ${healMsMax / 3_600_000} h after the last fault: ${names.join(', ')}`;
  }

  #strike({ kind, seed }: PlannedFault): void {
    const random = new Random(seed);
    const host = random.pick(this.#hosts);
    const worker = random.pick(host);
    this.#note(`fault: ${kind} (${worker.name})`);
    if (kind === 'kill') worker.kill();
    else if (kind === 'power') for (const each of host) each.cutPower();
    else if (kind === 'store') this.#setMood(moodOf(random), random.between(50, 30_000));
    else if (kind === 'lying store') this.#setMood({ kind: 'lies' }, 1_000);
    else if (kind === 'disk full') this.#fillDisk(worker, random.between(100, 5_000));
    else this.#spoilDisk(worker, kind === 'slow disk', random);
  }

  #setMood(mood: Mood, ms: number): void {
    this.#note(`the store ${JSON.stringify(mood)} for ${Math.round(ms)} ms`);
    this.#store.mood = mood;
    this.#time.after(ms, () => {
      if (this.#store.mood === mood) this.#store.mood = { kind: 'well' };
    });
  }

  #fillDisk(worker: Worker, ms: number): void {
    worker.disk.capacityBytes = worker.disk.usedBytes();
    this.#time.after(ms, () => {
      worker.disk.capacityBytes = Number.MAX_SAFE_INTEGER;
    });
  }

  #spoilDisk(worker: Worker, isSlow: boolean, random: Random): void {
    let left = 1 + random.below(3);
    worker.disk.fault = (operation) => {
      const fails = operation === 'write' || operation === 'sync';
      if (!fails || left === 0) return undefined;
      left -= 1;
      return isSlow ? random.between(5, 3_000) : 'EIO';
    };
  }

  #heal(workers: readonly Worker[]): void {
    this.#note('all faults end');
    this.#store.mood = { kind: 'well' };
    for (const { disk } of workers) {
      disk.fault = () => undefined;
      disk.capacityBytes = Number.MAX_SAFE_INTEGER;
    }
  }

  #check(workers: readonly Worker[]): string[] {
    const rows = [...this.#store.telemetry.values()];
    const faults = this.#senders.flatMap((sender) =>
      sender.faults(rows.filter(({ device }) => device === sender.device.number)),
    );
    for (const [name, latest] of this.#store.latest) {
      const series = rows.filter(({ device, key }) => name === `${device} ${key}`);
      const newest = series.reduce((a, b) => (isLater(b, a) ? b : a));
      if (newest.int !== latest.int) faults.push(`the latest value of ${name} is ${latest.int}, not ${newest.int}`);
    }
    const hasBad = this.#senders.some((sender) => sender.habit === 'bad' && sender.hasSentBad);
    const quarantined = workers.reduce((sum, worker) => sum + worker.quarantined, 0);
    if (quarantined > 0 && !hasBad) faults.push(`${quarantined} good rows are in quarantine`);
    return faults;
  }

  #note(line: string): void {
    this.#events.push(`${(this.#time.passed / 1000).toFixed(3)} s  ${line}`);
    if (this.#events.length > 4 * eventsMax) this.#events.splice(0, eventsMax);
  }
}

function moodOf(random: Random): Mood {
  const draw = random.below(6);
  if (draw === 0) return { kind: 'down' };
  if (draw === 1) return { kind: 'hangs' };
  if (draw === 2) return { kind: 'slow', ms: random.between(100, 20_000) };
  if (draw === 3) return { kind: 'dies', deadMs: random.between(50, 5_000) };
  return { kind: 'refuses', code: random.pick(codes), inPart: random.next() < 0.5 };
}
