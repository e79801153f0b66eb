/**
 * An engine with `INGEST_ACK=stream`, beside stores and NATS servers of its own, which its test may end. The engine has
 * one worker and one device.
 */
import type { Device } from './api.ts';
import { type Engine, startEngine } from './engine.ts';
import { NatsCluster } from './nats-cluster.ts';
import { hostSettings, type Stores, startStores } from './stores.ts';

export interface StreamEngine {
  engine: Engine;
  stores: Stores;
  nodes: NatsCluster;
  device: Device;
  /** Ends all of it, in any state. */
  stop: () => Promise<void>;
}

/** Starts all of it; `settings` are added to those of the stores and of the stream. */
export async function startStreamEngine(deviceName: string, settings: Record<string, string>): Promise<StreamEngine> {
  const stores = await startStores();
  let nodes: NatsCluster | undefined;
  let engine: Engine | undefined;
  const stop = async () => {
    await engine?.destroyAtOnce();
    await Promise.all([nodes?.stop(), stores.stopAll()]);
  };
  try {
    nodes = await NatsCluster.start();
    engine = await startEngine({
      workers: 1,
      env: { ...hostSettings(stores), ...streamSettings(nodes), ...settings },
    });
    return { engine, stores, nodes, device: await engine.api.createDevice(deviceName), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Returns the settings with which frames are published to these servers. */
export function streamSettings(nodes: NatsCluster): Record<string, string> {
  return { INGEST_ACK: 'stream', STREAM_URL: nodes.url, STREAM_BYTES_MAX: '64MiB' };
}
