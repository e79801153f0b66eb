/** The long crash run; the short one of the test suite is the same driver with fewer kills. */
import { crashRun } from '../crash.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

export async function runCrash(settings: BenchSettings): Promise<boolean> {
  const outcome = await crashRun({ ...settings.crash, workers: 2, say });
  table(['killed', 'times'], Object.entries(outcome.kills));
  say(`acknowledged ${outcome.acknowledged}, missing ${outcome.missing}, altered ${outcome.altered}`);
  say(
    `twice ${outcome.twice}, refused but stored ${outcome.refusedButStored}, never sent but stored ${outcome.unknown}`,
  );
  const acks = (answers: Record<number, number>) => JSON.stringify(answers);
  say(`HTTP answers ${acks(outcome.answers)}, PUBACKs ${acks(outcome.pubacks)} (0 and -1: the connection broke)`);
  writeResult('crash', settings, outcome);
  return outcome.good;
}
