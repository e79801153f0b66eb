/** Asks a Redis once for its version, for `npm run doctor`; each node of a cluster separately. */
import { Redis } from 'ioredis';
import { type RedisSettings, readRedisAddress } from './redis-address.ts';
import { redisFailureOf } from './redis-failure.ts';

const waitMsMax = 3_000;

/** Rejects with the reason when a node does not answer. */
export async function redisVersions(settings: RedisSettings): Promise<string[]> {
  const address = readRedisAddress(settings);
  if ('server' in address) return [await versionOf(new Redis({ ...address.server, ...once }))];
  const { nodes, login } = address.cluster;
  return await Promise.all(nodes.map(({ host, port }) => versionOf(new Redis({ host, port, ...login, ...once }))));
}

const once = {
  connectTimeout: waitMsMax,
  commandTimeout: waitMsMax,
  sentinelCommandTimeout: waitMsMax,
  maxRetriesPerRequest: 0,
  lazyConnect: true,
  retryStrategy: () => null,
  sentinelRetryStrategy: () => null,
};

async function versionOf(redis: Redis): Promise<string> {
  let failure: Error | undefined;
  redis.on('error', (error: Error) => {
    failure = new Error(redisFailureOf(error));
  });
  try {
    await redis.connect();
    const info = await redis.info('server');
    return /^redis_version:(.*)$/m.exec(info)?.[1]?.trim() ?? 'of an unknown version';
  } catch (error) {
    // The error of the promise says only that the connection is closed.
    throw failure ?? error;
  } finally {
    redis.disconnect();
  }
}
