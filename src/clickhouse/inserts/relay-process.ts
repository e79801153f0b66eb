/**
 * Main module of the process of the insert relay (`relay.ts`). The process tells its parent when it listens, takes the
 * pace from its parent, and ends when the parent requests it or has ended.
 */
import { once } from 'node:events';
import { createRelay } from './relay.ts';
import { type FromRelay, type RelaySettings, relaySettingsVariable, type ToRelay } from './relay-settings.ts';

/** Inserts that run at a stop may take this long. */
const drainMsMax = 5_000;

async function main(): Promise<void> {
  const settings = JSON.parse(process.env[relaySettingsVariable] ?? '') as RelaySettings;
  delete process.env[relaySettingsVariable];
  let everyMs = 0;
  const relay = createRelay({ url: settings.url, everyMs: () => everyMs });
  const stop = (): void => {
    relay.close(() => process.exit(0));
    relay.closeIdleConnections();
    setTimeout(() => process.exit(0), drainMsMax).unref();
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
  relay.listen(settings.port, '127.0.0.1');
  await once(relay, 'listening');
  process.send?.({ listens: true } satisfies FromRelay);
}

await main();
