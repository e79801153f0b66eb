/** Finds the instance that runs on the DATA_DIR of a command's settings, as its control socket describes it. */
import { accessSync, constants } from 'node:fs';
import { join, resolve } from 'node:path';
import { openControl } from '../base/control-socket.ts';
import { liveProcess } from '../base/process-file.ts';
import type { Config } from '../base/settings/config.ts';
import type { Setting } from '../base/settings/settings.ts';
import { runDirectory } from '../instance/host/data-files.ts';
import { controlPath, type InstanceDescription } from '../instance/operators/control.ts';

export interface RunningInstance extends InstanceDescription {
  /** The address at which this host reaches the REST port of the instance. */
  url: string;
  /** The address of the monitor of the instance; undefined when the port of the monitor is chosen at each start. */
  monitorUrl: string | undefined;
}

/** Returns undefined when no instance answers. */
export async function findInstance(config: Config): Promise<RunningInstance | undefined> {
  try {
    const control = await openControl(controlPath(resolve(config.data.dir)));
    try {
      const described = await control.ask<InstanceDescription>('describe');
      const { monitor } = described.config;
      const monitorUrl = monitor.port === 0 ? undefined : `http://${reachable(monitor.address)}:${monitor.port}`;
      return { ...described, url: ownUrl(described.config), monitorUrl };
    } finally {
      control.close();
    }
  } catch {
    return undefined;
  }
}

/** Returns the address at which this host reaches the REST port of an instance with these settings. */
export function ownUrl({ http }: Pick<Config, 'http'>): string {
  return `http://${reachable(http.address)}:${http.port}`;
}

/** True when a primary of this DATA_DIR lives: it may be starting or stopping, and answers no command then. */
export function primaryLives(config: Config): boolean {
  return liveProcess(join(resolve(config.data.dir), runDirectory, 'primary.pid')) !== undefined;
}

/** False when the rights of this user hide an instance on DATA_DIR. */
export function mayFindInstance(config: Config): boolean {
  try {
    accessSync(join(resolve(config.data.dir), runDirectory), constants.R_OK | constants.X_OK);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'EACCES';
  }
}

/** Returns the names of settings whose values in the instance differ from those that a start would take now. */
export function otherSettings(settings: Setting[], running: Config): string[] {
  return settings.filter(({ path, value }) => at(running, path) !== value).map(({ name, path }) => name || path);
}

/** Returns the value at a path such as `http.port`. */
export function at(config: Config, path: string): unknown {
  return path.split('.').reduce<unknown>((node, key) => (node as Record<string, unknown> | undefined)?.[key], config);
}

function reachable(address: string): string {
  if (address === '0.0.0.0' || address === '::') return '127.0.0.1';
  return address.includes(':') ? `[${address}]` : address;
}
