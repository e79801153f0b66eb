/** The messages between the primary and its workers. All other messages between workers use the bus. */

import type { Sample } from '../../base/metrics/metrics.ts';
import type { Work } from '../../base/running-work.ts';
import type { Config } from '../../base/settings/config.ts';
import type { JournalCut } from '../../journal/journal.ts';
import type { RuleText } from '../../rules/table.ts';
import type { ClockState } from '../clock/clock-offset.ts';
import type { JournalRoom } from '../health/refusal-forecast.ts';
import type { WorkerRefusals } from '../health/refusal-watch.ts';
import type { JournalReportsOfHost } from '../journals/journal-reports.ts';

/** The addresses of the running engines. */
export interface Engines {
  clickhouse: { url: string; user: string; password: string };
  postgresUrl: string;
}

export interface Begin {
  kind: 'begin';
  slot: number;
  /** Read once, by the primary. */
  config: Config;
  rules: RuleText[];
  engines: Engines;
  /** The id of the installation: one for all hosts that share the stores. */
  installation: string;
  clock: ClockState;
  /** True when PostgreSQL has the tables of this version. Until then no statement may be sent. */
  postgresReady: boolean;
  /** Journal directories of workers that no longer exist, for this worker to ship. */
  orphanJournals: string[];
}

export type PartState = 'up' | 'starting' | 'away';

export interface InstanceState {
  status: 'starting' | 'ready' | 'degraded' | 'refusing' | 'draining';
  parts: Record<string, PartState>;
  /** The reasons of `degraded` and `refusing`, in sentences for an operator, except for parts that are not up. */
  reasons: string[];
  /** PostgreSQL has the tables of this version; once true, always true. */
  postgresReady: boolean;
  /** The slot of the worker that does the work of which an instance needs one; undefined while no worker is ready. */
  leader: number | undefined;
  /** Work that ended two workers: `keyOf` of each, refused for now. */
  blocked: string[];
  /** The time to go by, and how far this host's own clock is from it. */
  clock: ClockState;
}

/** An unavailable store degrades the instance but leaves it in rotation: telemetry is still made durable. */
export function isUp({ status }: Pick<InstanceState, 'status'>): boolean {
  return status === 'ready' || status === 'degraded';
}

export const unmeasuredClock: ClockState = { line: undefined, offsetMs: 0, verdict: 'unmeasured' };

export type ToWorker =
  | Begin
  | { kind: 'state'; state: InstanceState }
  | { kind: 'collect'; id: number }
  /** For a backup: journals are held until the release. */
  | { kind: 'holdJournals'; id: number }
  | { kind: 'releaseJournals'; id: number }
  /** A worker answers with `journalReports`. */
  | { kind: 'reportJournals'; id: number; flush: boolean }
  | ({ kind: 'journals'; id: number } & JournalReportsOfHost)
  | { kind: 'drain' };

export type ToPrimary =
  /** The worker receives messages from now on; earlier ones would be lost. */
  | { kind: 'hello' }
  /** The worker cannot continue yet, for this reason, and retries. */
  | { kind: 'waiting'; reason: string }
  | { kind: 'ready' }
  | ({
      kind: 'status';
      degraded: string[];
      busFailure: string | undefined;
      room: Omit<JournalRoom, 'worker'>;
    } & Omit<WorkerRefusals, 'worker'>)
  | { kind: 'samples'; id: number; samples: Sample[] }
  | { kind: 'journalsHeld'; id: number; cuts: JournalCut[]; intact: boolean }
  /** `flush`: rows that wait for more rows are shipped now. */
  | { kind: 'askJournals'; id: number; flush: boolean }
  | ({ kind: 'journalReports'; id: number } & JournalReportsOfHost)
  | { kind: 'failed'; message: string }
  /** The last words of a worker that ends by a bug. */
  | { kind: 'died'; message: string; suspects: Work[] };

export const runDirectory = 'run';
export const journalDirectory = 'journal';
export const clickhouseDirectory = 'clickhouse';
export const postgresDirectory = 'postgres';
export const secretsFile = 'secrets.json';
/** The last measurement of the database's clock. */
export const clockFile = 'clock.json';
/** Present while a restore fills the directory: it must not be started. */
export const restoringFile = 'restoring';
/** Names the backup from which a restore made the directory. */
export const restoredFile = 'restored.json';

export function journalName(slot: number): string {
  return `worker-${slot}`;
}
