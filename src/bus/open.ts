/**
 * Chooses the bus of this process: Redis when a URL is set, else the hub in the primary. The client of Redis, a tenth
 * of a second of each start, is loaded in the first case only.
 */
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Bus, busCounters } from './bus.ts';
import { IpcBus } from './ipc.ts';
import { type Port, parentPort } from './port.ts';
import { channelNames, type LinkOwner, RedisBus, type RedisLink } from './redis.ts';
import { type RedisSettings, readRedisAddress } from './redis-address.ts';

interface BusDeps {
  /** The hub of the primary is used when the URL is empty. */
  redis: RedisSettings;
  /** The id of this installation, which separates its channels from those of others on the same Redis. */
  installation: string;
  log: Log;
  metrics: Metrics;
  /** The connection to the hub; the primary itself passes one end of a `portPair`. */
  port?: Port;
}

export async function openBus({ redis, installation, log, metrics, port }: BusDeps): Promise<Bus> {
  const counters = busCounters(metrics, log);
  const bus =
    redis.url === ''
      ? new IpcBus(port ?? parentPort(), counters)
      : new RedisBus(await linkTo(redis), counters, log, channelNames(installation));
  metrics.observed('bus_connected', 'Processes that are connected to the bus.', () => (bus.connected ? 1 : 0));
  return bus;
}

async function linkTo(settings: RedisSettings): Promise<(owner: LinkOwner) => RedisLink> {
  const address = readRedisAddress(settings);
  if ('cluster' in address) {
    const { ClusterLink } = await import('./redis-cluster.ts');
    return (owner) => new ClusterLink(address.cluster, owner);
  }
  const { SingleLink } = await import('./redis-single.ts');
  return (owner) => new SingleLink(address.server, owner);
}
