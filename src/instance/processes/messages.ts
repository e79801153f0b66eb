/** The messages between the primary and its workers. All other messages between workers use the bus. */

import type { Sample } from '../../base/metrics/metrics.ts';
import type { Work } from '../../base/running-work.ts';
import type { Config } from '../../base/settings/config.ts';
import type { PollResult } from '../../postgres/shared-poll.ts';
import type { RuleText } from '../../rules/table.ts';
import type { ClockState } from '../clock/clock-offset.ts';
import type { JournalRoom } from '../health/refusal-forecast.ts';
import type { WorkerRefusals } from '../health/refusal-watch.ts';
import type { InstanceState } from '../health/state.ts';
import type { HoldAnswer, HoldRequest } from '../journals/journal-hold.ts';
import type { JournalReportsOfHost } from '../journals/journal-reports.ts';
import type { Engines } from '../stores/engines.ts';

export interface Begin {
  kind: 'begin';
  slot: number;
  /** The number of workers of this host. */
  workers: number;
  /** The settings as the primary has read them. */
  config: Config;
  rules: RuleText[];
  engines: Engines;
  /** The id of the installation, which is the same for all hosts that share the stores. */
  installation: string;
  clock: ClockState;
  /** True when PostgreSQL has the tables of this version. Until then no statement may be sent. */
  postgresReady: boolean;
  /** Journal directories of workers that no longer exist, for this worker to ship. */
  orphanJournals: string[];
}

export type ToWorker =
  | Begin
  | { kind: 'state'; state: InstanceState }
  | { kind: 'collect'; id: number }
  /** The requests of a backup: journals are held until the release. */
  | HoldRequest
  /** A worker answers with `journalReports`. */
  | { kind: 'reportJournals'; id: number; flush: boolean }
  | ({ kind: 'journals'; id: number } & JournalReportsOfHost)
  /** MQTT connections leave at this rate; a worker answers with `handedOver`. */
  | { kind: 'handOver'; perSecond: number }
  /** Some MQTT connections leave at this rate; the worker takes new ones as before. */
  | { kind: 'handOverSome'; count: number; perSecond: number }
  /**
   * True: the other workers of this host have clearly fewer MQTT connections, and accept the next ones. False: this
   * worker accepts them, too, and answers with `acceptsAgain` when it listens.
   */
  | { kind: 'aheadOfOthers'; isAhead: boolean }
  /** The result of the host's poll of PostgreSQL. */
  | { kind: 'polled'; result: PollResult }
  | { kind: 'drain' };

export type ToPrimary =
  /** The worker receives messages from now on; messages before this one would be lost. */
  | { kind: 'hello' }
  /** The worker cannot continue yet, for this reason, and retries. */
  | { kind: 'waiting'; reason: string }
  | { kind: 'ready' }
  | ({
      kind: 'status';
      degraded: string[];
      busFailure: string | undefined;
      room: Omit<JournalRoom, 'worker'>;
      mqttConnections: number;
      /** True while there is no room for another one. */
      isFull: boolean;
    } & Omit<WorkerRefusals, 'worker'>)
  /** The worker has accepted clearly more connections since its last status, or is full now. */
  | { kind: 'mqttConnections'; count: number; isFull: boolean }
  | { kind: 'acceptsAgain' }
  | { kind: 'samples'; id: number; samples: Sample[] }
  | HoldAnswer
  /** `flush`: rows that wait for more rows are shipped now. */
  | { kind: 'askJournals'; id: number; flush: boolean }
  | ({ kind: 'journalReports'; id: number } & JournalReportsOfHost)
  /** The worker stops, and its journals keep so many bytes that ClickHouse does not have. */
  | { kind: 'keptBytes'; bytes: number }
  /** No MQTT connection is left. */
  | { kind: 'handedOver' }
  | { kind: 'failed'; message: string }
  /** The worker ends because of a bug. */
  | { kind: 'died'; message: string; suspects: Work[] };
