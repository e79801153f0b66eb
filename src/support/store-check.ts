/**
 * Checks for `npm run doctor` whether the stores answer, and their versions and clocks. An embedded store of an
 * instance that does not run is checked for its packages only.
 */

import { counted } from '../base/counted.ts';
import { causeMessageOf, messageOf, StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { type Config, shardUrlsOf } from '../base/settings/config.ts';
import { listOfSetting } from '../base/settings/list-setting.ts';
import { redisVersions } from '../bus/redis-version.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { installedClickHouse } from '../clickhouse/embedded/installed.ts';
import { clickHouseFacts } from '../clickhouse/server-facts.ts';
import type { Finding } from '../instance/host/machine.ts';
import { isLive } from '../instance/membership/host-store.ts';
import { openPostgresOf, openShardsOf } from '../instance/stores/engines.ts';
import { findInstallation } from '../instance/stores/installation.ts';
import { clickHouseRefusal, hostOf, postgresRefusal } from '../instance/stores/wrong-store-settings.ts';
import type { Postgres } from '../postgres/client.ts';
import { installedPostgres } from '../postgres/embedded/binaries.ts';
import { hasSearchIndex, postgresFacts, searchIndexSql } from '../postgres/server-facts.ts';
import { connectReason, isLogin } from '../stream/connect-reason.ts';
import { findUse } from '../stream/copies-store.ts';
import { inspectStreams } from '../stream/inspect-streams.ts';
import type { StreamOwner } from '../stream/prepare-streams.ts';
import { ServerCertificates } from '../stream/server-certificates.ts';
import { findStranded } from '../stream/stranded-streams.ts';
import { readOtherHosts } from './hosts-check.ts';

const clockToleranceMs = 2_000;
/** As the alert MillraceCertificateEnds. */
const certificateDaysMin = 14;
const checkServer = 'Check its address, the network and the server.';
/** Processes with a pool of their own beside the workers: the primary and the reports. */
const otherProcesses = 2;

/** Returns the settings with a database that every ClickHouse has: the database of Millrace may not exist yet. */
export function withSystemDatabase(config: Config): Config {
  return { ...config, clickhouse: { ...config.clickhouse, database: 'system' } };
}

/** Returns a finding for each shard. */
export async function checkClickHouse(config: Config, isRunning: boolean, log: Log): Promise<Finding[]> {
  if (config.clickhouse.url === '' && !isRunning)
    return [await installed('clickhouse', 'The embedded ClickHouse', installedClickHouse)];
  const urls = shardUrlsOf(config.clickhouse);
  const shards = openShardsOf(withSystemDatabase(config), log);
  try {
    return await Promise.all(shards.all.map((clickhouse, shard) => checkShard(config, clickhouse, urls[shard]!)));
  } finally {
    await shards.close();
  }
}

async function checkShard(config: Config, clickhouse: ClickHouse, url: string): Promise<Finding> {
  const subject = 'clickhouse';
  const { user } = config.clickhouse;
  const setting = clickhouse.shard ? 'CLICKHOUSE_SHARDS' : 'CLICKHOUSE_URL';
  const title = url === '' ? 'The embedded ClickHouse' : `ClickHouse at ${hostOf(url)} (${setting})`;
  const advice = url === '' ? endIt('clickhouse') : checkServer;
  try {
    const { version, nowMs } = await clickHouseFacts(clickhouse);
    return clockFinding(subject, `${title} is ${version}`, nowMs);
  } catch (error) {
    const refusal = clickHouseRefusal(error, title, user)?.message;
    return { subject, level: 'fault', says: refusal ?? `${title} does not answer: ${reasonOf(error)}. ${advice}` };
  }
}

export async function checkPostgres(config: Config, workers: number, isRunning: boolean, log: Log): Promise<Finding> {
  const subject = 'postgresql';
  const isEmbedded = config.postgres.url === '';
  if (isEmbedded && !isRunning) return installed(subject, 'The embedded PostgreSQL', installedPostgres);
  const postgres = openPostgresOf(config, log);
  const title = isEmbedded ? 'The embedded PostgreSQL' : `PostgreSQL at ${postgres.address} (DATABASE_URL)`;
  const advice = isEmbedded ? endIt('postgres') : checkServer;
  try {
    const { version, nowMs, connectionsMax } = await postgresFacts(postgres);
    const isDirect = !isEmbedded && !config.postgres.behindPooler;
    const excess = isDirect
      ? connectionsBeyond(connectionsMax, config, [workers, ...(await othersOf(postgres, config))])
      : undefined;
    if (excess !== undefined) return { subject, level: 'warning', says: `${title} ${excess}` };
    if (!(await hasSearchIndex(postgres))) {
      const advice = `install the extension pg_trgm, then run "create extension pg_trgm" and "${searchIndexSql}"`;
      const says = `${title} has no index for searches of devices, so each search reads every name: ${advice}.`;
      return { subject, level: 'warning', says };
    }
    return clockFinding(subject, `${title} is ${version}`, nowMs);
  } catch (error) {
    const refusal = postgresRefusal(error, title)?.message;
    return { subject, level: 'fault', says: refusal ?? `${title} does not answer: ${reasonOf(error)}. ${advice}` };
  } finally {
    await postgres.close();
  }
}

/** Returns the workers of each other live host; none before the first start. */
async function othersOf(postgres: Postgres, config: Config): Promise<number[]> {
  const others = await readOtherHosts(postgres, config).catch(() => []);
  return others.filter(isLive).map(({ workers }) => workers);
}

/** `workers`: those of each live host, of this one first. Other hosts count with the pool size of this host. */
export function connectionsBeyond(connectionsMax: number, { postgres }: Config, workers: number[]): string | undefined {
  const [own = 0, ...others] = workers.map((count) => (count + otherProcesses) * postgres.poolMax);
  const all = others.reduce((sum, each) => sum + each, own);
  if (all <= connectionsMax) return undefined;
  const who =
    others.length === 0 ? `this host opens up to ${all}` : `${workers.length} hosts open up to ${all}, this one ${own}`;
  const advice = 'raise max_connections of the server, put PgBouncer in front, or lower DATABASE_POOL_MAX or WORKERS';
  return `takes ${connectionsMax} connections of all its clients, and ${who}: ${advice}.`;
}

/** Without a Redis there is nothing to check. */
export async function checkRedis({ redis }: Config): Promise<Finding[]> {
  const subject = 'redis';
  if (redis.url === '') return [];
  try {
    const versions = [...new Set(await redisVersions(redis))];
    return [{ subject, level: 'ok', says: `Redis (REDIS_URL) is ${versions.join(', ')}.` }];
  } catch (error) {
    return [{ subject, level: 'fault', says: `Redis (REDIS_URL) does not answer: ${reasonOf(error)}. ${checkServer}` }];
  }
}

/** Without a stream there is nothing to check but streams that are left behind. */
export async function checkStreams(config: Config, isRunning: boolean, log: Log): Promise<Finding[]> {
  const subject = 'stream';
  const { stream } = config;
  const { stranded, ...owner } = await ownerOf(config, isRunning, log);
  const behind = stranded.map(({ reason }): Finding => {
    return { subject, level: 'fault', says: `${capitalized(reason)}.` };
  });
  if (stream.url === '') return behind;
  return [...behind, await checkServersOf(stream, owner), ...(await checkCertificatesOf(stream))];
}

/** Returns what PostgreSQL knows of the streams; without it, whose the streams are is not checked. */
async function ownerOf(
  config: Config,
  isRunning: boolean,
  log: Log,
): Promise<StreamOwner & { stranded: { reason: string }[] }> {
  const unknown = { installation: '', copies: undefined, stranded: [] };
  if (config.postgres.url === '' && !isRunning) return unknown;
  const postgres = openPostgresOf(config, log);
  try {
    const [installation = '', use, stranded] = await Promise.all([
      findInstallation(postgres),
      findUse(postgres),
      findStranded(postgres, config.stream),
    ]);
    return { installation, ...use, stranded };
  } catch {
    // The check of PostgreSQL says why it does not answer.
    return unknown;
  } finally {
    await postgres.close();
  }
}

async function checkServersOf(stream: Config['stream'], owner: StreamOwner): Promise<Finding> {
  const subject = 'stream';
  try {
    const { version, unchecked, missing } = await inspectStreams(stream, owner);
    const title = `NATS (STREAM_URL) is ${version}`;
    if (missing !== undefined) return { subject, level: 'fault', says: `${title}, but ${missing}.` };
    if (unchecked.length > 0) {
      const why = unchecked.join('; ');
      const says = `${title}; whether each server syncs each message is not known (STREAM_MONITOR_URLS): ${why}.`;
      return { subject, level: 'warning', says };
    }
    if (listOfSetting(stream.url).length > 1) {
      return { subject, level: 'ok', says: `${title} and syncs each message.` };
    }
    const says = `${title} and syncs each message. STREAM_URL names one server: name all of them, because a host that starts while that one does not answer finds no other.`;
    return { subject, level: 'warning', says };
  } catch (error) {
    if (error instanceof StartError) return { subject, level: 'fault', says: error.message };
    const advice = isLogin(error) ? '' : ` ${checkServer}`;
    const says = `The servers of the stream (STREAM_URL) cannot be used: ${connectReason(error)}.${advice}`;
    return { subject, level: 'fault', says };
  }
}

/** Names the server whose certificate ends first. */
async function checkCertificatesOf(stream: Config['stream']): Promise<Finding[]> {
  const subject = 'stream';
  // `checkServersOf` names a file that cannot be read.
  const certificates = new ServerCertificates(stream, 'millrace doctor', () => {});
  await certificates.refresh();
  const { first } = certificates;
  if (first === undefined) return [];
  const title = `The certificate of ${first.server} (STREAM_URL), or of its issuer,`;
  const advice = 'renew it, then run "nats-server --signal reload" there';
  if (first.daysLeft <= 0)
    return [{ subject, level: 'fault', says: `${title} has expired or is not accepted: ${advice}.` }];
  const says = `${title} ends in ${counted(Math.floor(first.daysLeft), 'day')}`;
  if (first.daysLeft >= certificateDaysMin) return [{ subject, level: 'ok', says: `${says}.` }];
  return [{ subject, level: 'warning', says: `${says}: ${advice}.` }];
}

function capitalized(sentence: string): string {
  return `${sentence.charAt(0).toUpperCase()}${sentence.slice(1)}`;
}

function endIt(store: string): string {
  return `When it hangs, end its process (its pid is in DATA_DIR/run/${store}.pid): Millrace starts it again.`;
}

function installed(subject: string, title: string, find: () => string): Finding {
  try {
    const version = find();
    return { subject, level: 'ok', says: `${title} ${version} is installed and does not run now.` };
  } catch (error) {
    return { subject, level: 'fault', says: messageOf(error) };
  }
}

function clockFinding(subject: string, says: string, nowMs: number): Finding {
  const aheadMs = Date.now() - nowMs;
  if (Math.abs(aheadMs) <= clockToleranceMs) return { subject, level: 'ok', says: `${says}.` };
  const seconds = Math.round(Math.abs(aheadMs) / 1000);
  const side = aheadMs > 0 ? 'ahead of' : 'behind';
  return {
    subject,
    level: 'warning',
    says: `${says}; this host's clock is ${seconds} s ${side} its clock: set both (NTP).`,
  };
}

/** The client of PostgreSQL answers with a fault for devices, whose cause has the reason. */
function reasonOf(error: unknown): string {
  return causeMessageOf(error).replace(/\.$/, '');
}
