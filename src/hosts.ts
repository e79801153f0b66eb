/**
 * `npm run hosts`: shows the hosts of this installation, the one that started first at the top. Reads PostgreSQL only.
 * With an external PostgreSQL it works while Millrace is stopped on this host.
 */
import { columns } from './base/columns.ts';
import { printLine } from './base/command.ts';
import { messageOf, StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { loadConfig } from './base/settings/config.ts';
import { type FleetHost, isLive, readHosts } from './instance/membership/host-store.ts';
import { openPostgresOf } from './instance/stores/engines.ts';
import { sqlStateOf } from './postgres/client.ts';

const usage = 'usage: npm run hosts';
const head = ['name', 'address', 'zone', 'version', 'workers', 'up since', 'last heartbeat', 'state'];
const undefinedTable = '42P01';

async function run(words: string[]): Promise<void> {
  if (words.length > 0) throw new StartError(usage);
  const postgres = openPostgresOf(loadConfig(), createLog('error', 'hosts'));
  try {
    const hosts = await readHosts(postgres);
    for (const line of columns([head, ...hosts.map(rowOf)])) printLine(line);
    const live = hosts.filter(isLive).length;
    printLine(`${live} live, ${hosts.length - live} silent`);
  } catch (error) {
    if (sqlStateOf(error) !== undefinedTable) throw error;
    throw new StartError('This database knows no hosts yet: start Millrace of this version first.');
  } finally {
    await postgres.close();
  }
}

function rowOf(host: FleetHost): string[] {
  const { name, address, zone, version, workers, startedMs, ageMs } = host;
  return [
    name,
    address,
    zone === '' ? '-' : zone,
    version,
    String(workers),
    new Date(startedMs).toISOString(),
    `${Math.max(0, Math.round(ageMs / 1000))} s ago`,
    isLive(host) ? 'live' : 'silent',
  ];
}

run(process.argv.slice(2)).catch((error: unknown) => {
  process.stderr.write(`millrace: ${messageOf(error)}\n`);
  process.exit(1);
});
