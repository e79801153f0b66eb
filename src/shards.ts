/**
 * `npm run shards`: shows how many buckets of devices each ClickHouse server has. `balance` gives every shard the same
 * number, for instance after a server was added; `empty N` moves all buckets away from a shard. Both work while
 * telemetry comes in, and continue what an interrupted call has begun.
 */
import { columns } from './base/columns.ts';
import { printLine, runCommand } from './base/command.ts';
import { StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { loadConfig, shardUrlsOf } from './base/settings/config.ts';
import { noShard } from './clickhouse/shards.ts';
import { openPostgresOf, openShardsOf } from './instance/stores/engines.ts';
import { readMovingMap } from './instance/stores/shard-map-store.ts';
import { moveBuckets, planMoves } from './instance/stores/shard-moves.ts';
import { hostOf } from './instance/stores/wrong-store-settings.ts';

const usage = 'usage: npm run shards [-- balance | empty SHARD] [--without-silent]';

async function run(words: string[]): Promise<void> {
  const withoutSilent = words.includes('--without-silent');
  const [command = 'list', shard, ...more] = words.filter((word) => word !== '--without-silent');
  const config = loadConfig();
  const urls = shardUrlsOf(config.clickhouse);
  const emptied = command === 'empty' ? Number(shard ?? Number.NaN) : undefined;
  const isKnown = command === 'empty' || (['list', 'balance'].includes(command) && shard === undefined);
  if (!isKnown || more.length > 0) throw new StartError(usage);
  if (emptied !== undefined && !(Number.isInteger(emptied) && emptied >= 0 && emptied < urls.length && urls.length > 1))
    throw new StartError(`"${shard}" is no shard that can be emptied: there are ${urls.length}, with numbers from 0.`);
  const log = createLog('warn', 'shards');
  const postgres = openPostgresOf(config, log);
  const shards = openShardsOf(config, log);
  try {
    if (command !== 'list') {
      const { cluster } = config.clickhouse;
      const deps = { postgres, shards: shards.all, cluster, withoutSilent, say: printLine };
      await moveBuckets(deps, ({ shardOf }) => planMoves(shardOf, urls.length, emptied));
    }
    const map = await readMovingMap(postgres);
    if (!map)
      throw new StartError('There is no map of shards: CLICKHOUSE_SHARDS is not set, or Millrace has not started.');
    const moving = map.movesTo.filter((to) => to !== noShard).length;
    const rowOf = (url: string, n: number) => [
      String(n),
      hostOf(url),
      String(map.shardOf.filter((each) => each === n).length),
    ];
    for (const line of columns([['shard', 'server', 'buckets'], ...urls.map(rowOf)])) printLine(line);
    if (moving > 0) printLine(`${moving} buckets are moving: \`npm run shards -- balance\` continues`);
  } finally {
    await Promise.all([postgres.close(), shards.close()]);
  }
}

runCommand(run);
