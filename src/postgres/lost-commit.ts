/**
 * Repeats a transaction whose commit got no answer, as when the connection is lost or another server takes over. The
 * transaction may have been committed, so a repetition must recognise what the first run made.
 */
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { isLostCommit } from './postgres-error.ts';

/** Throws the refusal of the lost commit when PostgreSQL does not answer for `lostCommitMsMax`. */
export async function untilAnswered<Result>(work: (isRepeated: boolean) => Promise<Result>): Promise<Result> {
  try {
    return await work(false);
  } catch (error) {
    if (!isLostCommit(error)) throw error;
    return await repeated(work, error);
  }
}

async function repeated<Result>(work: (isRepeated: boolean) => Promise<Result>, lost: unknown): Promise<Result> {
  const deadline = performance.now() + limits.lostCommitMsMax;
  for (;;) {
    try {
      return await work(true);
    } catch (error) {
      if (!(error instanceof Fault) || error.status !== 503) throw error;
      if (performance.now() > deadline) throw lost;
      await systemScheduler.sleep(limits.postgresServersMs);
    }
  }
}
