/**
 * Chooses the bus of this process: Redis when a URL is set, else the hub in the primary. The client of Redis, a tenth
 * of a second of each start, is loaded in the first case only.
 */
import { StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Bus, busCounters } from './bus.ts';
import { IpcBus } from './ipc.ts';
import { type Port, parentPort } from './port.ts';
import { channelNames, type LinkOwner, RedisBus, type RedisLink } from './redis.ts';
import type { ClusterAddress } from './redis-cluster.ts';

interface BusDeps {
  redisUrl: string;
  /** The id of this installation, which separates its channels from those of others on the same Redis. */
  installation: string;
  log: Log;
  metrics: Metrics;
  /** The connection to the hub; the primary itself passes one end of a `portPair`. */
  port?: Port;
}

export async function openBus({ redisUrl, installation, log, metrics, port }: BusDeps): Promise<Bus> {
  const counters = busCounters(metrics, log);
  const bus =
    redisUrl === ''
      ? new IpcBus(port ?? parentPort(), counters)
      : new RedisBus(await linkTo(redisUrl), counters, log, channelNames(installation));
  metrics.observed('bus_connected', 'Processes that are connected to the bus.', () => (bus.connected ? 1 : 0));
  return bus;
}

async function linkTo(url: string): Promise<(owner: LinkOwner) => RedisLink> {
  const cluster = parseClusterUrl(url);
  if (cluster) {
    const { ClusterLink } = await import('./redis-cluster.ts');
    return (owner) => new ClusterLink(cluster, owner);
  }
  if (!/^rediss?:\/\/[^/]/.test(url)) throw malformed();
  const { SingleLink } = await import('./redis-single.ts');
  return (owner) => new SingleLink(url, owner);
}

/** `redis+cluster://[user:password@]host:port[,host:port]`, or any Redis URL with several hosts. */
export function parseClusterUrl(url: string): ClusterAddress | undefined {
  const match = /^redis(s?)(\+cluster)?:\/\/(?:([^@/]*)@)?([^/?@]+)\/?$/.exec(url);
  if (!match) return undefined;
  const [, secure, marked, login, hosts = ''] = match;
  if (!marked && !hosts.includes(',')) return undefined;
  const nodes = hosts.split(',').map((text) => {
    const [, host, port] = /^(.+?)(?::(\d+))?$/.exec(text.trim()) ?? [];
    if (!host) throw malformed();
    return { host, port: Number(port ?? 6379) };
  });
  const [user, password] = (login ?? '').split(':').map(decodeURIComponent);
  return { nodes, ...(user && { username: user }), ...(password && { password }), ...(secure && { tls: {} }) };
}

/** The error leaves out the URL, which may hold a password. */
function malformed(): StartError {
  return new StartError(
    'Setting redis.url (REDIS_URL) must look like redis://host:6379, rediss://host:6379 or, for a cluster, redis+cluster://host:6379,host:6379.',
  );
}
