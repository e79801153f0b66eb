/**
 * Main module of the process of the insert relay (`relay.ts`) in front of one ClickHouse server, or of each shard. The
 * process tells its parent when it listens, takes the paces from its parent, and ends when the parent requests it or
 * has ended.
 */
import { once } from 'node:events';
import { systemScheduler } from '../../base/scheduler.ts';
import { createRelay, heldBytesMaxDefault } from './relay.ts';
import { type FromRelay, type RelaySettings, relaySettingsVariable, type ToRelay } from './relay-settings.ts';

/** Inserts that run at a stop may take this long. */
const drainMsMax = 5_000;

async function main(): Promise<void> {
  const settings = JSON.parse(process.env[relaySettingsVariable] ?? '') as RelaySettings;
  delete process.env[relaySettingsVariable];
  const { servers } = settings;
  let everyMs: readonly number[] = [];
  const heldBytesMax = Math.floor(heldBytesMaxDefault / servers.length);
  const relays = servers.map(({ url }, n) => createRelay({ url, everyMs: () => everyMs[n] ?? 0, heldBytesMax }));
  const stop = (): void => {
    const closed = relays.map((relay) => {
      const end = once(relay, 'close');
      relay.close();
      relay.closeIdleConnections();
      return end;
    });
    void Promise.all(closed).then(() => process.exit(0));
    systemScheduler.after(drainMsMax, () => process.exit(0));
  };
  process.on('message', (message: ToRelay) => {
    if ('stop' in message) stop();
    else everyMs = message.everyMs;
  });
  // Ctrl-C, and the stop of a service, may reach every process: while there is a parent, it decides.
  process.on('SIGTERM', () => {
    if (!process.connected) stop();
  });
  process.on('SIGINT', () => {});
  process.on('disconnect', stop);
  await Promise.all(
    relays.map(async (relay, n) => {
      relay.listen(servers[n]!.port, '127.0.0.1');
      await once(relay, 'listening');
    }),
  );
  process.send?.({ listens: true } satisfies FromRelay);
}

await main();
