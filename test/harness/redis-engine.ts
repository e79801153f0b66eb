/** An engine of two workers, which name themselves in answers and share a Redis of the test. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, startEngine } from './engine.ts';
import { freePort } from './ports.ts';
import { RedisServer } from './stores.ts';

export interface RedisEngine {
  redis: RedisServer;
  engine: Engine;
  destroy(): Promise<void>;
}

export async function startRedisEngine(): Promise<RedisEngine> {
  const directory = mkdtempSync(join(tmpdir(), 'millrace-redis-'));
  const redis = new RedisServer(directory, await freePort());
  const destroy = async (engine?: Engine): Promise<void> => {
    await engine?.destroy();
    await redis.stop();
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    await redis.start();
    const engine = await startEngine({ workers: 2, env: { REDIS_URL: redis.url, HTTP_TELL_WORKER: 'true' } });
    return { redis, engine, destroy: () => destroy(engine) };
  } catch (error) {
    await destroy();
    throw error;
  }
}
