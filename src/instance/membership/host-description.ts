/** Describes this host for the others: its name, where it can be reached, its zone and its settings. */
import { hostname, networkInterfaces } from 'node:os';
import type { Config } from '../../base/settings/config.ts';
import { ownVersion } from '../../base/version.ts';
import { equalSettingsOf } from './equal-settings.ts';
import type { HostDescription } from './host-store.ts';

/** Returns the name by which operators know this host. */
export function hostNameOf({ host }: Pick<Config, 'host'>): string {
  return host.name || hostname();
}

/** `id` is the id of the data directory, so that a host which starts again replaces its own row. */
export function describeHost(config: Config, workers: number, id: string): HostDescription {
  const { address, zone } = config.host;
  return {
    id,
    name: hostNameOf(config),
    address: address || `${addressOf(config.http.address)}:${config.http.port}`,
    zone,
    workers,
    version: ownVersion(),
    settings: equalSettingsOf(config),
  };
}

/** A host that listens on all addresses names the first one that other machines can reach. */
function addressOf(bound: string): string {
  if (bound !== '0.0.0.0' && bound !== '::') return bound;
  const all = Object.values(networkInterfaces()).flatMap((addresses = []) => addresses);
  return all.find(({ internal, family }) => !internal && family === 'IPv4')?.address ?? '127.0.0.1';
}
