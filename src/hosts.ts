/**
 * `npm run hosts`: shows the hosts of this installation, the one that started first at the top. `npm run hosts --
 * rebalance` lets hosts with more than their share of the MQTT connections hand over the surplus. Both speak to
 * PostgreSQL only. With an external PostgreSQL they work while Millrace is stopped on this host.
 */
import { columns } from './base/columns.ts';
import { printLine, runCommand } from './base/command.ts';
import { counted } from './base/counted.ts';
import { StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { type Config, loadConfig } from './base/settings/config.ts';
import { type LeftJournals, readLeftJournals } from './ingest/journal-store.ts';
import { orderMs } from './ingest/order-number.ts';
import { type FleetHost, isLive, readHosts, requestHandOver } from './instance/membership/host-store.ts';
import { sharesOf } from './instance/membership/shares.ts';
import { openPostgresOf } from './instance/stores/engines.ts';
import type { Postgres } from './postgres/client.ts';
import { isAway, sqlStateOf } from './postgres/postgres-error.ts';

const usage = 'usage: npm run hosts [-- rebalance [CONNECTIONS-PER-SECOND]]';
const head = ['name', 'address', 'zone', 'version', 'workers', 'MQTT', 'up since', 'last heartbeat', 'state'];
/** The codes of a table and of a column that this version makes. */
const undefinedTable = '42P01';
const undefinedColumn = '42703';
/** Connections that each host closes in a second. Each of them is a sign-in at another host. */
const perSecondDefault = 100;
const perSecondMax = 100_000;

async function run(words: string[]): Promise<void> {
  const perSecond = words.length === 0 ? undefined : rateOf(words);
  const config = loadConfig();
  const postgres = openPostgresOf(config, createLog('error', 'hosts'));
  try {
    const hosts = await readHosts(postgres);
    if (perSecond !== undefined) return await rebalance(postgres, hosts, perSecond);
    for (const line of columns([head, ...hosts.map(rowOf)])) printLine(line);
    const live = hosts.filter(isLive).length;
    printLine(`${live} live, ${hosts.length - live} silent`);
    for (const left of await readLeftJournals(postgres)) printLine(leftLine(left));
  } catch (error) {
    if (isAway(error)) throw new StartError(awaySentence(config));
    if (![undefinedTable, undefinedColumn].includes(sqlStateOf(error) ?? '')) throw error;
    throw new StartError('This database knows no hosts yet: start Millrace of this version first.');
  } finally {
    await postgres.close();
  }
}

function awaySentence({ postgres }: Config): string {
  if (postgres.url === '')
    return 'The embedded PostgreSQL does not answer: start Millrace first, or call `npm run doctor`.';
  return 'The PostgreSQL of DATABASE_URL does not answer: `npm run doctor` says why.';
}

function rateOf([command, rate = String(perSecondDefault), ...more]: string[]): number {
  if (command !== 'rebalance' || more.length > 0) throw new StartError(usage);
  const perSecond = /^\d+$/.test(rate) ? Number(rate) : 0;
  if (perSecond < 1 || perSecond > perSecondMax) {
    throw new StartError(`"${rate}" is no rate: name a whole number of connections from 1 to ${perSecondMax}.`);
  }
  return perSecond;
}

/** Each host closes its surplus itself, from its next heartbeat on. */
async function rebalance(postgres: Postgres, hosts: FleetHost[], perSecond: number): Promise<void> {
  const shares = sharesOf(hosts);
  for (const { host, surplus } of shares) {
    if (surplus > 0) await requestHandOver(postgres, host.id, { count: surplus, perSecond });
  }
  const rows = shares.map(({ host, connections, share, surplus }) =>
    [host.name, connections, share, surplus].map(String),
  );
  for (const line of columns([['name', 'MQTT connections', 'share', 'hands over'], ...rows])) printLine(line);
  const slowest = Math.max(0, ...shares.map(({ surplus }) => surplus)) / perSecond;
  printLine(
    slowest === 0
      ? 'No host has more than its share.'
      : `At most ${perSecond} connections a second and host, from the next heartbeat on: about ${Math.ceil(slowest)} s.`,
  );
}

/** A host stays here after it is forgotten, until its journals are stored. */
function leftLine({ host, journals, orderHigh, ageMs }: LeftJournals): string {
  const reported = new Date(Date.now() - ageMs).toISOString();
  const last = new Date(orderMs(BigInt(orderHigh))).toISOString();
  return (
    `${host}: ${counted(journals, 'journal')} without a report since ${reported} held rows that ClickHouse lacks, the ` +
    `last of ${last}. Start the host again on its DATA_DIR, or carry its journals to another host (npm run journal -- ship).`
  );
}

function rowOf(host: FleetHost): string[] {
  const { name, address, zone, version, workers, mqttConnections, startedMs, ageMs } = host;
  return [
    name,
    address,
    zone === '' ? '-' : zone,
    version,
    String(workers),
    mqttConnections === null ? '-' : String(mqttConnections),
    new Date(startedMs).toISOString(),
    `${Math.max(0, Math.round(ageMs / 1000))} s ago`,
    isLive(host) ? 'live' : 'silent',
  ];
}

runCommand(run);
