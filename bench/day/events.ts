/**
 * The events of a day in small, one after the other: reports, a tenth of the connections cut, a slow ClickHouse, a
 * killed worker. Between them nothing happens, so that the effect of each is visible beside calm time.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { say } from '../report.ts';

export interface DayEvent {
  name: string;
  /** Unix time. */
  atMs: number;
  untilMs: number;
}

/** A phase of the day, and what happens in it. */
export interface Phase {
  name: string;
  seconds: number;
  act?: () => Promise<void>;
}

/** Runs the phases; one whose act takes longer than its time ends with the act. */
export async function runPhases(phases: Phase[], signal: AbortSignal): Promise<DayEvent[]> {
  const events: DayEvent[] = [];
  const beganAt = Date.now();
  for (const { name, seconds, act } of phases) {
    const atMs = Date.now();
    say(`${((atMs - beganAt) / 1000).toFixed(0).padStart(5)} s  ${name}`);
    await Promise.all([sleep(seconds * 1000, undefined, { signal }), act?.()]);
    events.push({ name, atMs, untilMs: Date.now() });
  }
  return events;
}

const sliceMs = 500;
/** The part of each slice for which ClickHouse is stopped. */
const stoppedShare = 0.8;

/** Lets ClickHouse run for a fifth of the time only. */
export async function slowClickhouse(engine: Engine, seconds: number, signal: AbortSignal): Promise<void> {
  const pid = engine.pids().get('clickhouse');
  if (pid === undefined) throw new Error('the engine has no ClickHouse');
  const until = performance.now() + seconds * 1000;
  try {
    while (performance.now() < until && !signal.aborted) {
      process.kill(pid, 'SIGSTOP');
      await sleep(sliceMs * stoppedShare);
      process.kill(pid, 'SIGCONT');
      await sleep(sliceMs * (1 - stoppedShare));
    }
  } finally {
    // After a failure the engine may have ended.
    if (engine.pids().get('clickhouse') === pid) process.kill(pid, 'SIGCONT');
  }
}

/** Resolves when the engine has started another worker in its place. */
export async function killWorker(engine: Engine): Promise<void> {
  const role = 'worker-0';
  const killed = await engine.kill(role);
  await eventually(async () => {
    const pid = engine.pids().get(role);
    return pid !== undefined && pid !== killed;
  }, 30_000);
}
