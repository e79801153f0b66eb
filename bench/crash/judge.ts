/** Judges a crash run: what is in the stores beside the accounts of the loads. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../../test/harness/engine.ts';
import type { Deletes, DoomedVerdict } from './deletes.ts';
import type { InTurn, TurnVerdict } from './in-turn.ts';
import type { Ledger, Verdict } from './ledger.ts';
import { readDeletes, readRecords, readTurns } from './read.ts';

/** The accounts of the loads. */
interface JudgedLoads {
  ledger: Ledger;
  lateLedger: Ledger;
  inTurn: InTurn;
  deletes: Deletes;
  /** The numbers of the first late device and of the first one in turn, and how many of the latter there are. */
  firstLate: number;
  firstInTurn: number;
  inTurnCount: number;
}

interface Verdicts {
  live: Verdict;
  late: Verdict;
  turns: TurnVerdict;
  deletes: DoomedVerdict;
}

export interface Judged extends Verdicts {
  /** All of these must be 0. */
  sums: CrashSums;
}

interface CrashSums {
  lost: number;
  altered: number;
  twice: number;
  resurrected: number;
  refusedButStored: number;
  unknown: number;
  disordered: number;
  quarantined: number;
  stuck: number;
  /** Times that the engine ended, or did not stop or start, without a fault that explains it. */
  ended: number;
}

/** The pause before the result is judged once more. */
const againMs = 2_000;

export async function judge(
  engine: Engine,
  loads: JudgedLoads,
  stillWaiting: string[],
  ends: string[],
): Promise<Judged> {
  const { ledger, lateLedger, inTurn, deletes, firstLate, firstInTurn, inTurnCount } = loads;
  const verdicts = {
    live: await readRecords(engine, ledger, 0),
    late: await readRecords(engine, lateLedger, firstLate),
    turns: await readTurns(engine, inTurn, firstInTurn, inTurnCount),
    deletes: await readDeletes(engine, deletes),
  };
  return { ...verdicts, sums: sumsOf(verdicts, stillWaiting, ends) };
}

/** Judges again until the result cannot improve any more, or the time for it is over. */
export async function judgeLate(
  judgeNow: () => Promise<Judged>,
  { settleSeconds, signal }: { settleSeconds: number; signal?: AbortSignal },
): Promise<Judged> {
  const deadline = performance.now() + settleSeconds * 1000;
  const isLate = () => performance.now() > deadline;
  let judged: Judged | undefined;
  while (!judged || (wouldImprove(judged.sums) && !isLate())) {
    if (judged) await sleep(againMs, undefined, { signal });
    judged = await judgeNow().catch(async (error: unknown) => {
      // A busy store may refuse to be read for a while.
      if (isLate()) throw error;
      await sleep(againMs, undefined, { signal });
      return undefined;
    });
  }
  return judged;
}

/** True when the result may still improve: rows that are not shipped yet, deletes that are not carried out yet. */
function wouldImprove({ lost, resurrected }: CrashSums): boolean {
  return lost + resurrected > 0;
}

function sumsOf({ live, late, turns, deletes }: Verdicts, stillWaiting: string[], ends: string[]): CrashSums {
  return {
    lost: live.missing + late.missing + turns.missing + deletes.missing,
    altered: live.altered + late.altered,
    twice: live.twice + late.twice + turns.twice,
    resurrected: deletes.resurrected + deletes.resurrectedLatest + deletes.shownAfterDelete,
    refusedButStored: live.refusedButStored + late.refusedButStored + turns.refusedButStored,
    unknown: live.unknown + late.unknown + turns.unknown,
    disordered: turns.disordered + turns.latestWrong,
    quarantined: stillWaiting.filter((what) => what.startsWith('quarantine')).length,
    stuck: stillWaiting.filter((what) => !what.startsWith('quarantine')).length,
    ended: ends.length,
  };
}

/** What each sum counts. */
export const sumNames: Record<keyof CrashSums, string> = {
  lost: 'acknowledged and not stored',
  altered: 'stored with another content',
  twice: 'stored twice',
  resurrected: 'deleted and shown afterwards',
  refusedButStored: 'refused and stored',
  unknown: 'stored and never sent',
  disordered: 'in the wrong order',
  quarantined: 'in quarantine',
  stuck: 'still waiting at the end',
  ended: 'ends, starts and stops that no fault explains',
};

/** Names the sums that are not 0, as in "3 stored twice"; '' = all are 0. */
export function sumsText(sums: CrashSums): string {
  const names = Object.keys(sumNames) as (keyof CrashSums)[];
  return names
    .filter((name) => sums[name] !== 0)
    .map((name) => `${sums[name]} ${sumNames[name]}`)
    .join(', ');
}
