/** The long crash run; shorter ones of the same driver are in the test suite. Ctrl-C ends it and undoes everything. */
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { allFaults } from '../crash/faults.ts';
import { sumNames, sumsText } from '../crash/judge.ts';
import { type CrashOutcome, crashRun } from '../crash.ts';
import { figure, say, table, writeResult } from '../report.ts';
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
  const { seed, sums, faults, acknowledged, live, late, turns, seconds, stillWaiting, ends } = outcome;
  say('');
  table(['fault', 'times'], Object.entries(faults));
  say('');
  tellAnswers(outcome.answers);
  say(`\nserver times: up to ${turns.aheadMsMax} ms after the answer, ${turns.behindMsMax} ms before the message`);
  tellDeletes(outcome.deletes);
  say('');
  const names = Object.keys(sumNames) as (keyof typeof sumNames)[];
  table(
    ['must be 0', 'times'],
    names.map((name) => [sumNames[name], sums[name]]),
  );
  say('');
  const missing = [live, late, turns].flatMap(({ missingTimes }) => missingTimes);
  for (const what of missing.slice(0, missingLinesMax)) say(`MISSING: ${what}`);
  if (missing.length > missingLinesMax) say(`MISSING: and ${missing.length - missingLinesMax} more`);
  for (const what of [...stillWaiting, ...ends]) say(`LEFT: ${what}`);
  const rounds = Object.values(faults).reduce((sum, n) => sum + n, 0);
  const faulty = sumsText(sums) || (acknowledged > 0 ? 'every record as it must be' : 'nothing was acknowledged');
  const ran = `seed ${seed}: ${figure(seconds)} s, ${rounds} faults, ${figure(acknowledged)} records acknowledged`;
  say(`${ran}; ${outcome.good ? '' : 'NOT GOOD: '}${faulty}`);
}

const doors: Record<string, string> = {
  http: 'HTTP, records with a ts',
  late: 'HTTP, records of old days',
  inTurn: 'HTTP, records without a ts, in turn',
  mqtt: 'MQTT, records with a ts',
};

function tellAnswers(answers: CrashOutcome['answers']): void {
  const rows = Object.entries(answers).map(([door, counts]) => {
    const [right, broken] = door === 'mqtt' ? [0, -1] : [200, 0];
    const of = (code: number) => counts[code] ?? 0;
    const refused = Object.entries(counts).filter(([code]) => ![right, broken].includes(Number(code)));
    const name = (code: string) => (door === 'mqtt' ? `0x${Number(code).toString(16).padStart(2, '0')}` : code);
    const refusals = refused.map(([code, count]) => `${figure(count)} × ${name(code)}`).join(', ');
    return [doors[door] ?? door, of(right), of(broken), refusals || '-'];
  });
  table(['messages', 'acknowledged', 'connection broke', 'refused with'], rows);
}

function tellDeletes(deletes: CrashOutcome['deletes']): void {
  const { devicesDeleted, seriesDeleted, rangesDeleted, recorded, unanswered, gone } = deletes;
  say(
    `deletes: ${figure(devicesDeleted)} devices, ${figure(seriesDeleted)} keys and ${figure(rangesDeleted)} ranges of keys, ` +
      `which had ${figure(gone)} points; ${figure(recorded)} of them were answered 202, and ${figure(unanswered)} calls without ` +
      'an answer were sent again',
  );
  const { readsAfterDelete, shownAfterDelete, resurrected, resurrectedLatest, missing } = deletes;
  say(
    `         deleted points that came back: ${figure(resurrected)} in the history, ${figure(resurrectedLatest)} as latest values, ` +
      `${figure(shownAfterDelete)} in ${figure(readsAfterDelete)} reads right after a delete; other points that are missing: ` +
      `${figure(missing)}`,
  );
}
