/**
 * Checks for `npm run doctor` what this host has in common with the other hosts of the installation: their heartbeats,
 * settings that must be equal, versions, and the connections of all of them to PostgreSQL.
 */
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { counted } from '../base/counted.ts';
import type { Log } from '../base/log.ts';
import type { Config } from '../base/settings/config.ts';
import { ownVersion } from '../base/version.ts';
import { hostFile } from '../instance/host/data-files.ts';
import type { Finding } from '../instance/host/machine.ts';
import { equalSettingsOf, mismatchOf } from '../instance/membership/equal-settings.ts';
import { type FleetHost, isLive, readHosts } from '../instance/membership/host-store.ts';
import { openPostgresOf } from '../instance/stores/engines.ts';
import type { Queries } from '../postgres/client.ts';

const subject = 'hosts';

/** Returns nothing with an embedded PostgreSQL, which has one host. */
export async function checkHosts(config: Config, log: Log): Promise<Finding[]> {
  if (config.postgres.url === '') return [];
  const postgres = openPostgresOf(config, log);
  try {
    // The check of PostgreSQL says why it does not answer. Before the first start there is no table of hosts.
    const others = await readOtherHosts(postgres, config).catch(() => undefined);
    return others === undefined ? [] : judgeHosts(others, config);
  } finally {
    await postgres.close();
  }
}

/** Returns the hosts of the installation without the one of DATA_DIR. */
export async function readOtherHosts(queries: Queries, config: Config): Promise<FleetHost[]> {
  const own = ownIdOf(config);
  return (await readHosts(queries)).filter(({ id }) => id !== own);
}

function ownIdOf(config: Config): string | undefined {
  try {
    return readFileSync(join(resolve(config.data.dir), hostFile), 'utf8').trim();
  } catch {
    return undefined;
  }
}

export function judgeHosts(others: FleetHost[], config: Config): Finding[] {
  const live = others.filter(isLive);
  const findings = others.filter((host) => !isLive(host)).map(silence);
  const own = equalSettingsOf(config);
  const mismatches = live.flatMap((host) => mismatchOf(own, host) ?? []);
  if (mismatches[0] !== undefined) findings.push({ subject, level: 'fault', says: mismatches[0] });
  const newer = live.filter(({ version }) => version !== ownVersion());
  if (newer.length > 0) {
    const list = newer.map(({ name, version }) => `${name} ${version}`).join(', ');
    const says = `Hosts run other versions than ${ownVersion()}: ${list}. Bring all hosts to one version.`;
    findings.push({ subject, level: 'warning', says });
  }
  if (findings.length > 0) return findings;
  const says = `${counted(live.length, 'other host')} of this installation, with equal settings (npm run hosts).`;
  return [{ subject, level: 'ok', says }];
}

function silence({ name, address, ageMs }: FleetHost): Finding {
  const advice =
    'start it again on its DATA_DIR, or carry its journals to another host (npm run journal -- ship): ' +
    'they may hold what was acknowledged';
  const says = `${name} (${address}) has sent no heartbeat for ${Math.round(Math.abs(ageMs) / 1000)} s: ${advice}.`;
  return { subject, level: 'warning', says };
}
