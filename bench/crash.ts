/**
 * The crash run: load over sockets while faults happen in an order that a seed gives. Afterwards every acknowledged
 * record must be readable once and unchanged, every deleted one gone, and nothing may wait. `npm test` runs a short
 * one.
 */
import { cpSync, lstatSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { dayMs, hourMs } from '../src/base/durations.ts';
import { copyDirectory, preparedData } from '../test/harness/data-directory.ts';
import { type Engine, startEngine } from '../test/harness/engine.ts';
import { Random } from '../test/harness/random.ts';
import { Deletes } from './crash/deletes.ts';
import { type FaultKind, Faults } from './crash/faults.ts';
import { InTurn } from './crash/in-turn.ts';
import { type Judged, judge, judgeLate, sumsText } from './crash/judge.ts';
import { Ledger } from './crash/ledger.ts';
import { CrashLoad } from './crash/load.ts';
import { Machine } from './crash/machine.ts';
import { CrashMqttLoad } from './crash/mqtt-load.ts';
import { waiting } from './crash/read.ts';

export interface CrashOptions {
  seed: number;
  /** Time in which faults begin. On a busy machine it is longer, until the minima below are met. */
  seconds: number;
  acknowledgedMin: number;
  turnsMin: number;
  faultsMin: number;
  /** The run lasts until this many deletes are acknowledged. */
  deletesMin: number;
  /** Acknowledgements before the next fault, unless they take too long: an engine that recovers must also serve. */
  progressMin: number;
  /**
   * Devices that send with a ts. Together they send `rate` requests/s over HTTP on `sockets` sockets, and `mqttRate`
   * messages/s over MQTT.
   */
  devices: number;
  sockets: number;
  rate: number;
  mqttRate: number;
  /** Messages/s of old days, 20 days in each. */
  lateRate: number;
  /** Devices that send without a ts, and messages/s of each. */
  turnDevices: number;
  turnRate: number;
  /** Devices that are deleted, or lose series, at once. */
  doomed: number;
  workers: number;
  faults: Partial<Record<FaultKind, number>>;
  holdMsMax: number;
  /** Time in which the stores may store what waits at the end. */
  settleSeconds: number;
  say: (line: string) => void;
  signal?: AbortSignal;
  /** An empty folder for the log of the engine and, after a run that has failed, for its data directory. */
  keepIn?: string;
}

export interface CrashOutcome extends Judged {
  seed: number;
  seconds: number;
  faults: Record<string, number>;
  log: string[];
  damagedTails: string[];
  acknowledged: number;
  /** HTTP answers by status (0 = the connection broke), PUBACKs by reason code (-1 = the connection broke). */
  answers: Record<string, Record<number, number>>;
  ends: string[];
  stillWaiting: string[];
  good: boolean;
}

/** A start or stop that takes longer counts as stuck, also on a busy machine. */
const processMsMax = 240_000;
/**
 * Multiple of a run's seconds for which it continues until its minima are met, and of its `settleSeconds` for which it
 * settles.
 */
const patience = 4;
/** The longest wait of the next fault for `progressMin`, and of the end of the load for the other minima. */
const progressMsMax = 10_000;
const enoughMsMax = 60_000;
const lateDays = 300;
const lateRecords = 20;
const lateDevices = 4;
const turnSenders = 4;
const turnConnections = 3;
const doomedPauseMs = 200;
const journalSettings = {
  SHIP_LATE_SECONDS_MAX: '1',
  // Small segments, so that they are recycled in a short run; and a disk that may really be filled.
  JOURNAL_SEGMENT_BYTES: String(16 * 1024 * 1024),
  JOURNAL_FREE_DISK_BYTES_MIN: String(32 * 1024 * 1024),
};

export async function crashRun(options: CrashOptions): Promise<CrashOutcome> {
  const startedAt = performance.now();
  const machine = new Machine();
  let engine: Engine | undefined;
  // Ends the engine, so that callers that wait for its answers continue.
  const end = () => void engine?.killAll();
  options.signal?.addEventListener('abort', end);
  try {
    const dataDir = machine.disk && join(machine.disk, 'data');
    if (dataDir) beginWith(dataDir);
    const env = { ...machine.environment, ...journalSettings, LOG_LEVEL: 'warn' };
    const patient = { readyMsMax: processMsMax, stopMsMax: processMsMax };
    const { workers, keepIn } = options;
    const logFile = keepIn && join(keepIn, 'engine.log');
    engine = await startEngine({ workers, env, ...patient, logFile, ...(dataDir && { dataDir }) });
    const outcome = await runOn(engine, machine, options);
    if (!outcome.good && keepIn) {
      options.say(`not good: ${sumsText(outcome.sums)}`);
      await engine.killAll();
      // A control socket cannot be copied.
      const filter = (path: string) => !lstatSync(path).isSocket();
      cpSync(engine.dataDir, join(keepIn, 'data'), { recursive: true, filter });
      options.say(`kept in ${keepIn}: engine.log and the data directory`);
    }
    return { ...outcome, seconds: (performance.now() - startedAt) / 1000 };
  } finally {
    options.signal?.removeEventListener('abort', end);
    await engine?.killAll();
    await engine?.destroy();
    machine.close();
  }
}

async function runOn(engine: Engine, machine: Machine, options: CrashOptions): Promise<CrashOutcome> {
  const { seed, workers, faults: weights, holdMsMax, say, signal } = options;
  const senders = await createAllSenders(engine, options);
  const loads = startLoads(engine, machine, options, senders);
  const faults = new Faults({ engine, machine, random: new Random(seed), workers, weights, holdMsMax, say, signal });
  const startedAt = performance.now();
  const phase = (name: string) => faults.note(`${((performance.now() - startedAt) / 1000).toFixed(1)} s: ${name}`);
  await bringFaults(faults, loads, options);
  phase('the load is over');
  const stillWaiting = await storeAll(engine, faults, options, phase);
  const judged = await judgeLate(() => judge(engine, loads, stillWaiting, faults.ends), options);
  phase('judged');
  const acknowledged = judged.live.acknowledged + judged.late.acknowledged + judged.turns.acknowledged;
  return {
    seed,
    seconds: 0,
    faults: faults.done,
    log: faults.log,
    damagedTails: faults.damagedTails,
    acknowledged,
    ...judged,
    answers: loads.answers(),
    ends: faults.ends,
    stillWaiting,
    good: acknowledged > 0 && Object.values(judged.sums).every((sum) => sum === 0),
  };
}

/** Tokens of the devices of each kind. Their numbers are counted through, in this order. */
interface Senders {
  live: string[];
  late: string[];
  turns: string[];
}

async function createAllSenders(engine: Engine, { devices, turnDevices }: CrashOptions): Promise<Senders> {
  const tokens = await createSenders(engine, devices + lateDevices + turnDevices);
  return {
    live: tokens.slice(0, devices),
    late: tokens.slice(devices, devices + lateDevices),
    turns: tokens.slice(devices + lateDevices),
  };
}

type Loads = ReturnType<typeof startLoads>;

/** Starts all loads: records with a ts over both protocols, records of old days, messages in turn, deletes. */
function startLoads({ port, mqttPort, api }: Engine, machine: Machine, options: CrashOptions, senders: Senders) {
  const { seed, devices, sockets, rate, mqttRate, lateRate, turnRate, doomed } = options;
  const roomOf = (each: number, ofDevices: number) => Math.ceil((each * (options.seconds * patience + 60)) / ofDevices);
  const now = Date.now();
  const ledger = new Ledger(devices, roomOf(rate + mqttRate, devices), now - hourMs);
  const lateRoom = roomOf(lateRate * lateRecords, lateDevices);
  const lateLedger = new Ledger(lateDevices, lateRoom, now - 400 * dayMs, lateDays);
  const load = new CrashLoad({ port, tokens: senders.live, sockets, rate, records: 1, ledger });
  const mqttLoad = new CrashMqttLoad({ port: mqttPort, tokens: senders.live, rate: mqttRate, ledger });
  const lateLoad = new CrashLoad({
    port,
    tokens: senders.late,
    sockets: lateDevices,
    rate: lateRate,
    records: lateRecords,
    ledger: lateLedger,
  });
  const inTurn = new InTurn({
    port,
    tokens: senders.turns,
    senders: turnSenders,
    connections: turnConnections,
    rate: turnRate,
    messagesMax: roomOf(turnRate, 1),
    clockEpoch: () => machine.clockEpoch(),
  });
  const deletes = new Deletes({
    api,
    port,
    random: new Random(seed + 1),
    parallel: doomed,
    pauseMs: doomedPauseMs,
  });
  const all = [load, mqttLoad, lateLoad, inTurn, deletes];
  return {
    ledger,
    lateLedger,
    inTurn,
    deletes,
    /** The numbers of the first late device and of the first one in turn, and how many of the latter there are. */
    firstLate: devices,
    firstInTurn: devices + lateDevices,
    inTurnCount: senders.turns.length,
    answers: () => ({ http: load.answers, late: lateLoad.answers, inTurn: inTurn.answers, mqtt: mqttLoad.answers }),
    stop: () => Promise.all(all.map((each) => each.stop())),
  };
}

/** Brings faults until the time is over and enough has happened; then the loads end. */
async function bringFaults(faults: Faults, loads: Loads, options: CrashOptions): Promise<void> {
  const { ledger, inTurn, deletes } = loads;
  const { signal } = options;
  const startedAt = performance.now();
  const isEnough = () =>
    ledger.acknowledged >= options.acknowledgedMin &&
    (inTurn.answers[200] ?? 0) >= options.turnsMin &&
    deletes.acknowledged >= options.deletesMin;
  const faultCount = () => Object.values(faults.done).reduce((sum, n) => sum + n, 0);
  const over = () => {
    const seconds = (performance.now() - startedAt) / 1000;
    const isPatient = !(isEnough() && faultCount() >= options.faultsMin) && seconds < options.seconds * patience;
    return (seconds > options.seconds && !isPatient) || signal?.aborted === true;
  };
  const progress = async () => {
    const goal = ledger.acknowledged + options.progressMin;
    await waitFor(() => over() || ledger.acknowledged >= goal, progressMsMax, signal);
  };
  try {
    await faults.run(over, progress);
    await waitFor(isEnough, enoughMsMax, signal);
  } finally {
    await loads.stop();
  }
  signal?.throwIfAborted();
}

/**
 * Rows that wait in a journal are shipped, then all processes start once more: a start may lose, repeat and resurrect
 * too. Returns what still waits.
 */
async function storeAll(
  engine: Engine,
  faults: Faults,
  { settleSeconds, signal }: CrashOptions,
  phase: (name: string) => void,
): Promise<string[]> {
  const ship = async () => {
    const left = await settled(engine, settleSeconds * 1000, signal);
    const late = `nothing changed in ${settleSeconds} s, or too slowly: ${left.join(', ')}`;
    phase(left.length === 0 ? 'shipped' : late);
    return left;
  };
  await ship();
  await faults.stop();
  await faults.start();
  phase('started again');
  return await ship();
}

/** The stores of an engine that was started once, when the test run has prepared them: it saves seconds. */
function beginWith(dataDir: string): void {
  mkdirSync(dataDir);
  const prepared = process.env[preparedData];
  if (prepared !== undefined) copyDirectory(prepared, dataDir);
}

/** Makes devices, each with one point that has its number. */
async function createSenders(engine: Engine, count: number): Promise<string[]> {
  const tokens: string[] = [];
  for (let n = 0; n < count; n += 1) {
    const { token } = await engine.api.createDevice(`crash-${n}`);
    tokens.push(token);
    const status = await engine.api.postTelemetry(token, `{"number":${n}}`);
    if (status !== 200) throw new Error(`the first message of device ${n} was answered ${status}`);
  }
  return tokens;
}

/** Resolves when `isSo` returns true, or after `waitMsMax`. */
async function waitFor(isSo: () => boolean, waitMsMax: number, signal: AbortSignal | undefined): Promise<void> {
  const deadline = performance.now() + waitMsMax;
  while (!isSo() && performance.now() < deadline) await sleep(50, undefined, { signal });
}

/**
 * Waits until no row and no delete waits in the engine. Returns what still waits when nothing has changed for
 * `stillMsMax`, or after several times that time: a slow machine is not a fault of the engine.
 */
async function settled(engine: Engine, stillMsMax: number, signal: AbortSignal | undefined): Promise<string[]> {
  const end = performance.now() + stillMsMax * patience;
  let before = '';
  let deadline = 0;
  for (;;) {
    const what = await waiting(engine);
    if (what.every((one) => one.startsWith('quarantine'))) return what;
    const now = what.join();
    if (now !== before) deadline = Math.min(end, performance.now() + stillMsMax);
    before = now;
    if (performance.now() > deadline) return what;
    await sleep(500, undefined, { signal });
  }
}
