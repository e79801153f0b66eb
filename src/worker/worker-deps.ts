/** The collaborators with which every section of a worker is opened. */
import type { Proxies } from '../auth/transport.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Config } from '../base/settings/config.ts';
import type { Started } from '../instance/lifecycle/started.ts';
import type { Begin } from '../instance/processes/messages.ts';
import type { PrimaryLink } from '../instance/processes/primary-link.ts';

export interface WorkerDeps {
  link: PrimaryLink;
  begin: Begin;
  config: Config;
  log: Log;
  metrics: Metrics;
  /** Each section adds its stop; the section opened last stops first. */
  started: Started;
  proxies: Proxies;
  /** The workers of all hosts. */
  fleetWorkers: () => number;
}
