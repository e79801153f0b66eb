/** The long crash run; shorter ones of the same driver are in the test suite. Ctrl-C ends it and undoes everything. */

import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { allFaults } from '../crash/faults.ts';
import { type CrashOutcome, crashRun } from '../crash.ts';
import { say, table, writeResult } from '../report.ts';
import { resultDirectory } from '../result/result-file.ts';
import type { BenchSettings } from '../settings.ts';

const settleSeconds = 300;
const holdMsMax = 6_000;
const acknowledgedMin = 1_000;
const turnsMin = 1;
const faultsMin = 1;
const deletesMin = 1;
/** 0: a fault follows the one before even when the service has not recovered. */
const progressMin = 0;
const missingLinesMax = 40;
const exitInterrupted = 130;
const endSignals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

export async function runCrash(settings: BenchSettings): Promise<boolean> {
  const interrupt = new AbortController();
  const onSignal = () => interrupt.abort(new Error('interrupted'));
  for (const signal of endSignals) process.on(signal, onSignal);
  try {
    const { minutes, ...crash } = settings.crash;
    const { signal } = interrupt;
    const keepIn = keptRun(crash.seed);
    const seconds = minutes * 60;
    const faults = { faults: allFaults, holdMsMax, acknowledgedMin, turnsMin, faultsMin, deletesMin, progressMin };
    const outcome = await crashRun({ ...crash, ...faults, seconds, workers: 2, settleSeconds, say, signal, keepIn });
    tell(outcome);
    writeResult('crash', settings, outcome);
    return outcome.good;
  } catch (error) {
    if (!interrupt.signal.aborted) throw error;
    say('\ninterrupted');
    process.exitCode = exitInterrupted;
    return false;
  } finally {
    for (const signal of endSignals) process.off(signal, onSignal);
  }
}

/** The directory that the last run of a seed leaves; each run replaces that of the run before. */
function keptRun(seed: number): string {
  const path = join(resultDirectory(), `crash-seed-${seed}`);
  rmSync(path, { recursive: true, force: true });
  mkdirSync(path, { recursive: true });
  return path;
}

function tell(outcome: CrashOutcome): void {
  const { seed, sums, faults, acknowledged, answers, live, late, turns, deletes, seconds, stillWaiting, ends } =
    outcome;
  table(['fault', 'times'], Object.entries(faults));
  for (const [door, counts] of Object.entries(answers)) say(`answers ${door}: ${JSON.stringify(counts)}`);
  say('(HTTP by status, 0: the connection broke; MQTT by reason code, 0: success, -1: the connection broke)');
  say(`server times: up to ${turns.aheadMsMax} ms after the answer, ${turns.behindMsMax} ms before the message`);
  say(`deletes: ${JSON.stringify(deletes)}`);
  const missing = [live, late, turns].flatMap(({ missingTimes }) => missingTimes);
  for (const what of missing.slice(0, missingLinesMax)) say(`MISSING: ${what}`);
  for (const what of [...stillWaiting, ...ends]) say(`LEFT: ${what}`);
  const rounds = Object.values(faults).reduce((sum, n) => sum + n, 0);
  const results = Object.entries(sums).map(([name, n]) => `${name} ${n}`);
  say(`seed ${seed}, ${seconds.toFixed(0)} s, ${rounds} faults, acknowledged ${acknowledged}: ${results.join(', ')}`);
}
