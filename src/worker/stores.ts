/** Opens the stores, the bus between workers, and the messages to devices. */
import { systemClock as clock } from '../base/clock.ts';
import { HomeExchange } from '../bus/home-exchange.ts';
import { openBus } from '../bus/open.ts';
import { openChannels } from '../downlink/device-channels.ts';
import { Downlink } from '../downlink/downlink.ts';
import { SteadyClock } from '../erase/steady-clock.ts';
import { openStores } from '../instance/stores/engines.ts';
import { ShardMapFollower } from '../instance/stores/shard-map-follower.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openStoresAndBus(deps: WorkerDeps) {
  const { link, begin, config, log, metrics, started, fleetWorkers: workers } = deps;
  const { shards, postgres } = openStores({
    engines: begin.engines,
    config,
    log,
    metrics,
    parts: () => link.state.parts,
  });
  started.add('connections to the stores', () => Promise.all([shards.close(), postgres.close()]));
  if (!begin.postgresReady) postgres.hold();
  link.onState(({ parts, postgresReady }) => {
    if (parts['postgres'] === 'away') {
      // A server that never answers would delay each step of the start by the timeout of a connection or a statement.
      if (!link.isReady) postgres.hold();
    } else if (postgresReady) postgres.release();
  });
  if (shards.isDivided) {
    const follower = new ShardMapFollower({ postgres, shards, clock, log, onPoll: link.onPoll });
    started.add('map of shards', () => follower.stop());
    void follower.start();
  }
  const bus = await openBus({ redis: config.redis, installation: begin.installation, log, metrics });
  started.add('bus', () => bus.close());
  const isHome = () => link.state.isHomeHost && link.state.leader === begin.slot;
  const exchange = new HomeExchange({ bus, fleet: { workers, isHome } });
  await exchange.start();
  started.add('shared counts', () => exchange.stop());
  const channels = openChannels(bus);
  started.add('channels of devices', () => {
    for (const each of [channels.toDevice, channels.toOwners, channels.sessions]) each.leaveAll();
  });
  const downlink = new Downlink({ bus, channels, log, metrics });
  await downlink.start();
  started.add('downlink', () => downlink.stop());
  const steadyClock = new SteadyClock({ postgres, clock, log });
  return { shards, postgres, bus, exchange, channels, downlink, steadyClock, cluster: config.clickhouse.cluster };
}

export type Stores = Awaited<ReturnType<typeof openStoresAndBus>>;
