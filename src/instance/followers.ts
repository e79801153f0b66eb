/**
 * What follows the stores while an instance runs, once for all workers of this host: the file of known devices, the
 * poll of PostgreSQL, and the parts of the tables of each ClickHouse server.
 */
import { systemClock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { knownFile } from '../device/known/known-devices-file.ts';
import { KnownDevicesWriter } from '../device/known/known-devices-writer.ts';
import type { Postgres } from '../postgres/client.ts';
import type { PollResult } from '../postgres/shared-poll.ts';
import type { Started } from './lifecycle/started.ts';
import type { Membership } from './membership/membership.ts';
import { type RunningEngines, shardName } from './stores/engines.ts';
import { HostPoll } from './stores/host-poll.ts';
import type { Installation } from './stores/installation.ts';
import { PartsWatch } from './stores/parts-watch.ts';
import type { RestoredStores } from './stores/restored-stores.ts';
import type { StoreWatch } from './stores/store-watch.ts';

export interface Followers {
  /** Called when PostgreSQL has the tables of this version. Later calls change nothing. */
  begin(): void;
  /** One for each shard. */
  partsWatches: PartsWatch[];
}

interface FollowersDeps {
  dataPath: string;
  engines: RunningEngines;
  shards: Shards;
  postgres: Postgres;
  membership: Membership;
  restored: RestoredStores;
  installation: Installation;
  watch: StoreWatch;
  /** Gets the stop of each follower. */
  running: Started;
  log: Log;
  metrics: Metrics;
  /** Called with the result of each poll, for the workers. */
  onPolled: (result: PollResult) => void;
}

/** Makes the followers. Those of ClickHouse start at once. */
export function makeFollowers(deps: FollowersDeps): Followers {
  const { running } = deps;
  const known = knownDevicesWriter(deps);
  running.add('known devices', () => known.stop());
  const hostPoll = pollOfHost(deps);
  running.add('poll of the host', () => hostPoll.stop());
  const partsWatches = watchesOfParts(deps);
  running.add('parts of the tables', () => {
    for (const parts of partsWatches) parts.stop();
  });
  let hasBegun = false;
  const begin = () => {
    if (hasBegun) return;
    hasBegun = true;
    known.start();
    hostPoll.start();
  };
  return { begin, partsWatches };
}

function knownDevicesWriter({ dataPath, postgres, installation, log, metrics }: FollowersDeps): KnownDevicesWriter {
  return new KnownDevicesWriter({
    path: knownFile(dataPath),
    postgres,
    source: async () => Buffer.from(installation.id, 'hex'),
    clock: systemClock,
    log,
    metrics,
  });
}

function pollOfHost({ postgres, restored, log, onPolled }: FollowersDeps): HostPoll {
  const onNumber = (last: number, isOtherServer: boolean) => restored.polled(last, isOtherServer);
  return new HostPoll({ postgres, log, onResult: onPolled, onNumber });
}

function watchesOfParts({ engines, shards, membership, watch, log }: FollowersDeps): PartsWatch[] {
  const watches = shards.all.map((clickhouse, shard) => {
    const isClickHouseUp = () => watch.up(shardName(shard)) === 1;
    return new PartsWatch({ clickhouse, isClickHouseUp, hosts: () => membership.fleetHosts, log });
  });
  // Only joined inserts have a pace.
  if (engines.engines.clickhouse.relayUrls !== undefined) for (const parts of watches) parts.start();
  return watches;
}
