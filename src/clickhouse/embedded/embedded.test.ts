/** The embedded server as its clients use it: @clickhouse/client, curl, a supervisor. */
import { type ChildProcess, execFileSync, fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
} from 'node:fs';
import { getPriority, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { ClickHouseLogLevel, type ClickHouseSettings, createClient } from '@clickhouse/client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { builtServer, startEmptyClickHouse, type TestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { endProcess, startedTicksOf } from '../../base/process-file.ts';
import { joinableComment } from '../inserts/joined-inserts.ts';
import { startEmbeddedClickHouse } from './embedded.ts';
import { mayRaiseThreads } from './priority.ts';
import { readOwner } from './read-owner.ts';
import { serverLimits } from './settings.ts';

const nice = 8;
let embedded: TestClickHouse;
const client = () =>
  createClient({
    url: embedded.server.url,
    username: 'default',
    password: embedded.server.password,
    log: { level: ClickHouseLogLevel.OFF },
  });
let shared: ReturnType<typeof client>;

const root = mkdtempSync(join(tmpdir(), 'millrace-clickhouse-'));

beforeAll(async () => {
  // The directory as an earlier version made it.
  const dir = join(root, 'clickhouse');
  mkdirSync(dir, { mode: 0o755 });
  embedded = await startEmptyClickHouse({ nice, dir });
  shared = client();
});

afterAll(async () => {
  await shared.close();
  await embedded.stop();
  rmSync(root, { recursive: true, force: true });
});

const get = (query: string, more = '') =>
  fetch(`${embedded.server.url}/?query=${encodeURIComponent(query)}${more}`, {
    headers: { 'X-ClickHouse-Key': embedded.server.password },
  });
const post = (query: string, body: Uint8Array | string, headers: Record<string, string> = {}) =>
  fetch(`${embedded.server.url}/${query === '' ? '' : `?query=${encodeURIComponent(query)}`}`, {
    method: 'POST',
    body: body as string,
    headers: { 'X-ClickHouse-Key': embedded.server.password, ...headers },
  });
const value = async (query: string) => (await (await get(query)).text()).trim();
const slowQuery = 'SELECT count() FROM numbers(100000000000) WHERE sipHash64(number) = 1';
/** The text of a running statement without the tag of a SELECT. */
const withoutTag = "if(startsWith(query, '/*'), substring(query, position(query, '*/ ') + 3), query)";
const running = async (like: string) =>
  Number(await value(`SELECT count() FROM system.processes WHERE ${withoutTag} LIKE '${like}%'`));
const eventually = async (check: () => Promise<boolean>) => {
  for (let i = 0; i < 100; i += 1) {
    if (await check()) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
};
/** The files of the rows that this server has received. */
const bodies = (): string[] => bodyDirs().flatMap((dir) => readdirSync(dir));
const bodyDirs = (): string[] => {
  const name = createHash('sha256').update(embedded.options.dir).digest('hex').slice(0, 16);
  return [`/dev/shm/millrace-${name}`, join(embedded.options.dir, 'request-bodies')].filter((dir) => existsSync(dir));
};
/** Starts the server again with twice the free space of the disk as this share of its minimum; undefined = none. */
const restartWanting = async (share: number | undefined) => {
  await embedded.server.stop();
  const { bavail, bsize } = statfsSync(embedded.options.dir);
  const freeDiskBytesMin = share === undefined ? 0 : (2 * bavail * bsize) / share;
  embedded.server = await startEmbeddedClickHouse({ ...embedded.options, freeDiskBytesMin });
};

test('other users of the machine read none of its files', async () => {
  await shared.command({ query: 'CREATE TABLE closed (a Int64) ENGINE = MergeTree ORDER BY a' });
  await shared.insert({ table: 'closed', values: [{ a: 1 }], format: 'JSONEachRow' });
  const { dir } = embedded.options;
  const paths = ['.', ...(readdirSync(dir, { recursive: true }) as string[])];
  expect(paths.some((path) => path.endsWith('data.bin'))).toBe(true);
  const open = paths.filter((path) => {
    const stat = lstatSync(join(dir, path), { throwIfNoEntry: false });
    return stat && !stat.isSymbolicLink() && (stat.mode & 0o077) !== 0;
  });
  expect(open).toEqual([]);
});

test('no variable of its caller changes the server', () => {
  const environment = readFileSync(`/proc/${embedded.server.pid}/environ`, 'latin1').split('\0');
  const names = environment.map((variable) => variable.split('=')[0]).filter((name) => name !== '');
  const own = [
    'MILLRACE_EMBEDDED_CLICKHOUSE',
    'UV_THREADPOOL_SIZE',
    'NODE_CHANNEL_FD',
    'NODE_CHANNEL_SERIALIZATION_MODE',
  ];
  const inherited = ['PATH', 'HOME', 'TMPDIR', 'LD_LIBRARY_PATH'];
  expect(Object.keys(process.env)).toContain('VITEST');
  expect(names.filter((name) => !own.includes(name!) && !inherited.includes(name!))).toEqual([]);
});

describe('@clickhouse/client', () => {
  test('pings, commands, inserts and queries', async () => {
    expect((await shared.ping()).success).toBe(true);
    expect((await shared.ping({ select: true })).success).toBe(true);
    await shared.command({ query: 'CREATE TABLE plain (a Int64, b String) ENGINE = MergeTree ORDER BY a' });
    const values = [{ a: '9223372036854775807', b: 'it\'s "quoted"; \\ ü 🦀\n' }];
    await shared.insert({ table: 'plain', values, format: 'JSONEachRow' });
    const result = await shared.query({ query: 'SELECT toString(a) AS a, b FROM plain', format: 'JSONEachRow' });
    expect(await result.json()).toEqual(values);
  });

  test('sends buffers with exec', async () => {
    await shared.command({ query: 'CREATE TABLE copy (a Int64, b String) ENGINE = MergeTree ORDER BY a' });
    const native = Buffer.from(
      await (
        await get('SELECT number::Int64 AS a, toString(number) AS b FROM numbers(1000) FORMAT Native')
      ).arrayBuffer(),
    );
    const { stream, summary } = await shared.exec({ query: 'INSERT INTO copy FORMAT Native', values: native as never });
    stream.destroy();
    expect(summary?.written_rows).toBe('1000');
    expect(await value('SELECT count(), sum(a) FROM copy')).toBe('1000\t499500');
  });

  test('gets errors with code and type', async () => {
    await expect(shared.query({ query: 'SELECT * FROM nowhere' })).rejects.toMatchObject({
      code: '60',
      type: 'UNKNOWN_TABLE',
    });
    await expect(shared.command({ query: 'SELEC 1' })).rejects.toMatchObject({ code: '62' });
  });

  test('binds parameters of every awkward kind', async () => {
    const awkward = [
      "it's",
      'back\\slash',
      'tab\tline\nreturn\r',
      '{x:String} -- ; /* */',
      'ünïcödé 漢字 🦀',
      '\\N',
      'NULL',
      '',
    ];
    const query_params = {
      strings: awkward,
      text: awkward.join('|'),
      big: '18446744073709551615',
      low: '-9223372036854775808',
      fraction: 0.1,
      numbers: [1, 2, 3],
      nothing: null,
    };
    const result = await shared.query({
      query: `SELECT {strings:Array(String)} AS strings, {text:String} AS text, {big:UInt64} AS big, {low:Int64} AS low,
              {fraction:Float64} AS fraction, {numbers:Array(UInt8)} AS numbers, {nothing:Nullable(String)} AS nothing`,
      query_params,
      format: 'JSONEachRow',
      clickhouse_settings: { output_format_json_quote_64bit_integers: 1 },
    });
    expect(await result.json()).toEqual([query_params]);
  });

  test("parallel requests never see each other's parameters or settings", async () => {
    const ask = async (n: number) => {
      const result = await shared.query({
        query: "SELECT {n:UInt32} AS n, getSetting('max_block_size') AS size",
        query_params: { n },
        clickhouse_settings: n % 2 ? { max_block_size: String(1000 + n) as never } : {},
        format: 'JSONEachRow',
      });
      const [row] = await result.json<{ n: number; size: number | string }>();
      return [row!.n, Number(row!.size)];
    };
    const answers = await Promise.all(Array.from({ length: 100 }, (_, n) => ask(n)));
    answers.forEach(([n, size], i) => {
      expect(n).toBe(i);
      if (i % 2) expect(size).toBe(1000 + i);
      else expect(size).toBeGreaterThan(60_000);
    });
    await expect(shared.query({ query: 'SELECT {n:UInt32}' })).rejects.toMatchObject({ code: '456' });
  });

  test('a request has nothing of the requests before it, whose connection it may have', async () => {
    const url = (settings: string, parameters: string) =>
      [`&default_format=TabSeparated`, settings, parameters].filter((part) => part !== '').join('&');
    const query = "SELECT {n:UInt32}, toUInt64(getSetting('max_block_size')), currentDatabase()";
    const ask = async (n: number, settings = '') => {
      return (await (await get(query, url(settings, `param_n=${n}`))).text()).trim().split('\t');
    };
    const [, blockSize, own] = await ask(0);
    const small = 'max_block_size=1001';
    // More requests than a connection serves.
    for (let n = 1; n <= 1_050; n += 1) expect(await ask(n, small)).toEqual([String(n), '1001', own]);
    expect(await ask(1)).toEqual(['1', blockSize, own]);
    expect(await ask(2, `${small}&database=system`)).toEqual(['2', '1001', 'system']);
    expect(await ask(3, small)).toEqual(['3', '1001', own]);
    expect(await ask(4, 'max_block_size=1002')).toEqual(['4', '1002', own]);
    for (const parameters of ['', 'param_m=1']) {
      expect(await (await get(query, url(small, parameters))).text()).toContain('UNKNOWN_QUERY_PARAMETER');
    }
    expect(await ask(5, small)).toEqual(['5', '1001', own]);
  });
});

describe('plain HTTP', () => {
  test('only /ping needs no password', async () => {
    expect(await (await fetch(`${embedded.server.url}/ping`)).text()).toBe('Ok.\n');
    const none = await fetch(`${embedded.server.url}/?query=SELECT+1`);
    expect([none.status, none.headers.get('x-clickhouse-exception-code')]).toEqual([401, '194']);
    const wrong = await fetch(`${embedded.server.url}/?query=SELECT+1&user=default&password=x`);
    expect([wrong.status, await wrong.text()]).toEqual([403, expect.stringContaining('Code: 516. DB::Exception: ')]);
    const inUrl = await fetch(`${embedded.server.url}/?query=SELECT+1&password=${embedded.server.password}`);
    expect(await inUrl.text()).toBe('1\n');
  });

  test('answers with the status and code of ClickHouse', async () => {
    const outcome = async (query: string, more = '') => {
      const response = await get(query, more);
      const text = await response.text();
      const code = response.headers.get('x-clickhouse-exception-code');
      expect(text.startsWith(`Code: ${code}. DB::Exception: `)).toBe(true);
      return [response.status, Number(code)];
    };
    expect(await outcome('SELECT * FROM nowhere')).toEqual([404, 60]);
    expect(await outcome('SELECT 1', '&database=nowhere')).toEqual([404, 81]);
    expect(await outcome('SELECT 1 FROM (')).toEqual([400, 62]);
    expect(await outcome('SELECT 1; DROP TABLE plain')).toEqual([400, 62]);
    expect(await outcome('SELECT 1', '&no_such_setting=1')).toEqual([404, 115]);
    expect(await outcome("SELECT throwIf(1, 'x')")).toEqual([500, 395]);
    expect(await outcome('CREATE TABLE x (a Int8) ENGINE = Memory')).toEqual([500, 164]);
    expect(
      await outcome('SELECT sleepEachRow(0.1) FROM numbers(100) SETTINGS max_block_size=1', '&max_execution_time=0.3'),
    ).toEqual([408, 159]);
  });

  test('takes rows in the body, in any format, plain or gzipped, after the statement or apart', async () => {
    await post('', "CREATE TABLE rows (a Int64, b String DEFAULT 'none') ENGINE = MergeTree ORDER BY a");
    await post('', "INSERT INTO rows VALUES (1, 'a;b'), (2, '(')");
    await post('INSERT INTO rows (a) VALUES', '(3), (4)');
    await post('', 'INSERT INTO rows FORMAT JSONEachRow\n{"a":5,"b":"ü;\\n"}\n{"a":6}\n');
    await post('INSERT INTO rows FORMAT CSV', gzipSync('7,"seven"\n'), { 'Content-Encoding': 'gzip' });
    const binary = Buffer.from(await (await get("SELECT 8::Int64, '\n;eight' FORMAT RowBinary")).arrayBuffer());
    await post(
      '',
      Buffer.concat([Buffer.from('INSERT INTO rows SETTINGS max_insert_threads=1 FORMAT RowBinary\n'), binary]),
    );
    await post("INSERT INTO rows SELECT x * 9, 'input' FROM input('x Int64') FORMAT TSV", '1\n');
    expect(
      await value("SELECT arrayStringConcat(groupArray(concat(a, '=', b)), ',') FROM (SELECT * FROM rows ORDER BY a)"),
    ).toBe('1=a;b,2=(,3=none,4=none,5=ü;\\n,6=none,7=seven,8=\\n;eight,9=input');
    const bad = await post('INSERT INTO rows FORMAT JSONEachRow', '{"a":"x"}');
    expect([bad.status, bad.headers.get('x-clickhouse-exception-code')]).toEqual([400, '27']);
  });
});

test('inserts and merges compute no statistics of columns', async () => {
  await shared.command({ query: 'CREATE TABLE plain_part (a Int64) ENGINE = MergeTree ORDER BY a' });
  await shared.command({ query: 'INSERT INTO plain_part SELECT number FROM numbers(1000)' });
  await shared.command({ query: 'OPTIMIZE TABLE plain_part FINAL' });
  const query = `SELECT statistics FROM system.parts_columns WHERE table = 'plain_part' AND active`;
  expect(await (await shared.query({ query, format: 'JSONEachRow' })).json()).toEqual([{ statistics: [] }]);
});

test('long queries do not delay inserts', async () => {
  await shared.command({ query: 'CREATE TABLE quick (a Int64) ENGINE = MergeTree ORDER BY a' });
  const gone = new AbortController();
  const slow = Array.from({ length: 3 }, () =>
    shared.query({ query: slowQuery, abort_signal: gone.signal }).catch((error: Error) => error),
  );
  // All query slots are taken now: an insert has its own.
  await new Promise((resolve) => setTimeout(resolve, 300));
  const times: number[] = [];
  for (let i = 0; i < 20; i += 1) {
    const start = performance.now();
    await shared.insert({ table: 'quick', values: [{ a: i }], format: 'JSONEachRow' });
    times.push(performance.now() - start);
  }
  gone.abort();
  await Promise.all(slow);
  expect(times.sort((a, b) => a - b)[10]).toBeLessThan(10_000);
  expect(await eventually(async () => (await running('SELECT count() FROM numbers(1000000')) === 0)).toBe(true);
});

test('long reads of one tenant leave a slot to the reads of others', async () => {
  const gone = new AbortController();
  const slow = Array.from({ length: 8 }, () => {
    const clickhouse_settings = { log_comment: readOwner('a') };
    const asked = shared.query({ query: slowQuery, abort_signal: gone.signal, clickhouse_settings });
    return asked.catch((error: Error) => error);
  });
  const countOfSlow = () => running('SELECT count() FROM numbers(1000000');
  expect(await eventually(async () => (await countOfSlow()) === 2)).toBe(true);
  const read = { query: 'SELECT 1 AS a', clickhouse_settings: { log_comment: readOwner('b') } };
  expect(await (await shared.query({ ...read, format: 'JSONEachRow' })).json()).toEqual([{ a: 1 }]);
  expect(await countOfSlow()).toBe(2);
  gone.abort();
  await Promise.all(slow);
  expect(await eventually(async () => (await countOfSlow()) === 0)).toBe(true);
});

describe('priority', () => {
  /** Returns the nice values of the threads that have worked for a while on one statement. */
  async function niceWhile(query: string, settings: ClickHouseSettings = {}, rows?: string): Promise<Set<number>> {
    const gone = new AbortController();
    const before = threads();
    const values = rows === undefined ? {} : { values: Buffer.from(rows) as never };
    const asked = shared
      .exec({ query, ...values, clickhouse_settings: settings, abort_signal: gone.signal })
      .catch((error: Error) => error);
    const busy = () => [...threads()].filter(([id, { ticks }]) => ticks - (before.get(id)?.ticks ?? 0) > 20);
    expect(await eventually(async () => busy().length > 0)).toBe(true);
    const nices = new Set(busy().map(([, { nice }]) => nice));
    gone.abort();
    await asked;
    return nices;
  }

  /** CPU ticks and nice value of each thread. */
  function threads(): Map<string, { ticks: number; nice: number }> {
    const tasks = `/proc/${embedded.server.pid}/task`;
    return new Map(
      readdirSync(tasks).map((id) => {
        const fields = readFileSync(`${tasks}/${id}/stat`, 'latin1')
          .replace(/^.*\) /, '')
          .split(' ');
        return [id, { ticks: Number(fields[11]) + Number(fields[12]), nice: Number(fields[16]) }];
      }),
    );
  }

  const slowRows = `
    INSERT INTO FUNCTION null('n UInt64') SELECT sipHash64(n, number) FROM input('n UInt64') AS a CROSS JOIN numbers(100000000000) AS b
    FORMAT JSONEachRow`;
  // Where Linux allows no raise of a thread, all threads keep the lower priority.
  const read = mayRaiseThreads() ? nice / 2 : nice;

  test.each([0, 12])('without the capability, all threads get the lower priority, under nice -n %i', (more) => {
    const script = `
      const { readdirSync, readFileSync, promises } = require('node:fs');
      const tasks = '/proc/self/task';
      const niceOf = (id) => Number(readFileSync(tasks + '/' + id + '/stat', 'latin1').replace(/^.*\\) /, '').split(' ')[16]);
      import(process.argv[1]).then(async ({ standBack }) => {
        await promises.readFile(process.argv[1]);
        standBack(7);
        console.log(JSON.stringify(readdirSync(tasks).map(niceOf)));
      });`;
    const node = [process.execPath, '-e', script, join(dirname(builtServer()), 'priority.js')];
    // Drops the capability with the tool of Debian. A user who is not root has none.
    const isRoot = process.getuid!() === 0;
    const command = isRoot ? ['setpriv', '--bounding-set=-all', '--inh-caps=-all', ...node] : node;
    const nices = JSON.parse(execFileSync('nice', ['-n', `${more}`, ...command], { encoding: 'utf8' })) as number[];
    expect(nices.length).toBeGreaterThan(4);
    // A larger nice value stays, because Linux would refuse to make the value smaller.
    expect(new Set(nices)).toEqual(new Set([Math.max(7, Math.min(19, getPriority() + more))]));
  });

  test('inserts get the lower priority', async () => {
    const insert = `INSERT INTO FUNCTION null('n UInt64') ${slowQuery}`;
    expect(await niceWhile(insert)).toEqual(new Set([nice]));
  });

  test('reads get half of it, also on threads that have served an insert', async () => {
    expect(await niceWhile(slowQuery)).toEqual(new Set([read]));
  });

  test('reads with the setting get the same priority as inserts', async () => {
    expect(await niceWhile(slowQuery, { priority: '1' })).toEqual(new Set([nice]));
  });

  test('an insert that senders wait for keeps the priority of ingest', async () => {
    const settings = { log_comment: joinableComment('awaited') };
    const kept = mayRaiseThreads() ? 0 : nice;
    expect(await niceWhile(slowRows, settings, '{"n": 1}')).toEqual(new Set([kept]));
    expect(await niceWhile(slowRows, { ...settings, priority: '2' }, '{"n": 1}')).toEqual(new Set([2 * nice]));
  });

  test('inserts that wait for others as well get twice of it', async () => {
    const insert = `INSERT INTO FUNCTION null('n UInt64') ${slowQuery}`;
    expect(await niceWhile(insert, { priority: '2' })).toEqual(new Set([2 * nice]));
  });
});

test('a client that leaves at once leaves nothing running', async () => {
  for (let i = 0; i < 20; i += 1) {
    const asked = shared.query({ query: slowQuery, abort_signal: AbortSignal.timeout(i) });
    await expect(asked).rejects.toThrow(/aborted/);
  }
  expect(await eventually(async () => (await running('SELECT count() FROM numbers(1000000')) === 0)).toBe(true);
});

test.each([
  { what: 'a SELECT', query: slowQuery, begins: 'SELECT count() FROM numbers(' },
  {
    what: 'a SELECT with a parameter',
    query: 'SELECT count() FROM numbers({n:UInt64}) WHERE sipHash64(number) = 1',
    query_params: { n: 100_000_000_000 },
    begins: 'SELECT count() FROM numbers(',
  },
  { what: 'a query that begins with WITH', query: `WITH 1 AS one ${slowQuery}`, begins: 'WITH 1 AS one' },
])('$what is killed when its client disconnects', async ({ begins, what: _, ...asked }) => {
  const gone = new AbortController();
  const answer = shared.query({ ...asked, abort_signal: gone.signal }).catch((error: Error) => error);
  expect(await eventually(async () => (await running(begins)) === 1)).toBe(true);
  gone.abort();
  await answer;
  expect(await eventually(async () => (await running(begins)) === 0)).toBe(true);
});

test('inserts are found and ended by their mark, and by no other', async () => {
  const { clickhouse } = embedded;
  await clickhouse.exec('CREATE DATABASE IF NOT EXISTS millrace', {}, { withoutDatabase: true });
  await clickhouse.exec('CREATE TABLE slow (n UInt64) ENGINE = Memory');
  const insert = (mark: string, rows: number) =>
    clickhouse
      .exec(
        `INSERT INTO slow SELECT sleepEachRow(0.1) FROM numbers(${rows}) SETTINGS max_block_size = 1`,
        {},
        {
          settings: { log_comment: mark },
        },
      )
      .then(
        () => 'stored',
        () => 'ended',
      );
  const [long, other] = [insert('millrace-long', 600), insert('millrace-other', 10)];
  expect(await eventually(async () => (await running('INSERT INTO slow')) === 2)).toBe(true);
  expect(await clickhouse.endInserts('millrace-none')).toBe(true);
  expect(await clickhouse.endInserts('millrace-long')).toBe(false);
  expect(await eventually(() => clickhouse.endInserts('millrace-long'))).toBe(true);
  expect(await Promise.all([long, other])).toEqual(['ended', 'stored']);
});

test('rows are received also after the directory of their files was removed', async () => {
  // systemd removes what a user has in shared memory when the user signs out (RemoveIPC).
  const query = "INSERT INTO FUNCTION null('n UInt64') FORMAT JSONEachRow";
  expect((await post(query, '{"n": 1}')).status).toBe(200);
  const [kept] = bodyDirs();
  rmSync(kept!, { recursive: true });
  expect((await post(query, '{"n": 2}')).status).toBe(200);
  expect(statSync(kept!).mode & 0o777).toBe(0o700);
});

describe('inserts that may be joined', () => {
  const insert = (table: string, mark: string, body: string, abort?: AbortSignal) =>
    shared.command({
      query: `INSERT INTO ${table} FORMAT JSONEachRow\n${body}`,
      clickhouse_settings: { log_comment: joinableComment(mark) },
      ...(abort && { abort_signal: abort }),
    });
  const make = (table: string, column = 'n UInt64') =>
    shared.command({ query: `CREATE TABLE ${table} (${column}) ENGINE = MergeTree ORDER BY tuple()` });
  const row = (n: number) => JSON.stringify({ n });

  test('small inserts of one statement that arrive together become one part', async () => {
    await make('joined');
    await shared.command({ query: 'SYSTEM STOP MERGES joined' });
    const largest = "SELECT max(rows) FROM system.parts WHERE table = 'joined' AND level = 0";
    let sent = 0;
    // On a busy machine the requests may arrive one after the other.
    const isJoined = async () => {
      await Promise.all([1, 2, 3, 4].map((n) => insert('joined', `mark-${n}`, row(n))));
      sent += 4;
      return (await value(largest)) === '4';
    };
    expect(await eventually(isJoined)).toBe(true);
    expect(await value('SELECT count() FROM joined')).toBe(String(sent));
  });

  test('rows that are refused are those of their own request', async () => {
    await make('joined_bad');
    const answers = await Promise.allSettled(
      [row(1), '{"n": "no number"}', row(3)].map((body, n) => insert('joined_bad', `mark-${n}`, body)),
    );
    expect(answers.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    expect(await value('SELECT groupArray(n) FROM (SELECT n FROM joined_bad ORDER BY n)')).toBe('[1,3]');
  });

  test('the rows of a client that left are not inserted after its insert was found to have ended', async () => {
    // One second for each row.
    await make('joined_slow', 'n UInt64, slept UInt8 MATERIALIZED sleepEachRow(1)');
    const begin = () => {
      const gone = new AbortController();
      const left = insert('joined_slow', 'mark-left', row(1), gone.signal).catch(() => 'left');
      return { gone, left, stays: insert('joined_slow', 'mark-stays', row(2)) };
    };
    let { gone, left, stays } = begin();
    const count = () => running('INSERT INTO joined_slow');
    const isJoined = async () => {
      expect(await eventually(async () => (await count()) > 0)).toBe(true);
      if ((await count()) === 1) return true;
      // The requests arrived one after the other.
      await Promise.all([left, stays]);
      await shared.command({ query: 'TRUNCATE TABLE joined_slow' });
      ({ gone, left, stays } = begin());
      return false;
    };
    expect(await eventually(isJoined)).toBe(true);
    gone.abort();
    await left;
    const { clickhouse } = embedded;
    await clickhouse.exec('CREATE DATABASE IF NOT EXISTS millrace', {}, { withoutDatabase: true });
    expect(await eventually(() => clickhouse.endInserts('mark-left'))).toBe(true);
    await stays;
    expect(await value('SELECT groupArray(n) FROM joined_slow')).toBe('[2]');
  });

  test('the rows of a client that left while its insert waited for a slot are not inserted later', async () => {
    await make('joined_waits');
    await make('joined_busy');
    const patient = { priority: '1' };
    const query = 'INSERT INTO joined_busy SELECT sleepEachRow(0.1) FROM numbers(600) SETTINGS max_block_size = 1';
    const stop = new AbortController();
    const busy = [1, 2].map(() =>
      shared.command({ query, clickhouse_settings: patient, abort_signal: stop.signal }).catch(() => 'ended'),
    );
    expect(await eventually(async () => (await running('INSERT INTO joined_busy')) === 2)).toBe(true);
    const late = (mark: string, n: number, signal?: AbortSignal) =>
      shared.command({
        query: `INSERT INTO joined_waits FORMAT JSONEachRow\n${row(n)}`,
        clickhouse_settings: { ...patient, log_comment: joinableComment(mark) },
        ...(signal && { abort_signal: signal }),
      });
    const others = new Set(bodies());
    const waiting = () => bodies().filter((name) => !others.has(name)).length;
    const gone = new AbortController();
    const left = late('waits-left', 1, gone.signal).catch(() => 'left');
    const stays = late('waits-stays', 2);
    // A third file has the joined rows, unless the machine was too slow to join them.
    expect(await eventually(async () => waiting() >= 2)).toBe(true);
    gone.abort();
    await left;
    expect(await eventually(async () => waiting() === 1)).toBe(true);
    stop.abort();
    await Promise.all([stays, ...busy]);
    expect(await value('SELECT groupArray(n) FROM joined_waits')).toBe('[2]');
  });
});

describe('life of the process', () => {
  test('a second process on the same directory is refused with one line', async () => {
    const second = startEmbeddedClickHouse({
      ...embedded.options,
      runDir: `${embedded.options.runDir}-2`,
      port: 0,
      logLevel: 'error',
    });
    await expect(second).rejects.toThrow(/is in use by another process/);
  });

  test('rows survive kill -9 and a restart on the same port', async () => {
    const { options } = embedded;
    await shared.command({
      query: 'CREATE TABLE kept (a Int64) ENGINE = MergeTree ORDER BY a SETTINGS fsync_after_insert = 1',
    });
    for (let i = 0; i < 20; i += 1) await shared.insert({ table: 'kept', values: [{ a: i }], format: 'JSONEachRow' });
    const died = new Promise<string>((resolve) => embedded.server.onExit(resolve));
    process.kill(embedded.server.pid, 'SIGKILL');
    expect(await died).toBe('signal SIGKILL');
    embedded.server = await startEmbeddedClickHouse(options);
    expect(await value('SELECT count(), sum(a) FROM kept')).toBe('20\t190');
  });

  test('an insert whose files the disk does not take is refused, and costs no row that is stored', async () => {
    await shared.command({ query: 'CREATE TABLE full (a Int64) ENGINE = MergeTree ORDER BY a' });
    await shared.command({ query: 'INSERT INTO full SELECT number FROM numbers(5)' });
    const died = new Promise<string>((resolve) => embedded.server.onExit(resolve));
    // As on a full disk, every write of a file fails.
    execFileSync('prlimit', ['--pid', String(embedded.server.pid), '--fsize=0:unlimited']);
    const answer = await post('', 'INSERT INTO full SELECT number + 5 FROM numbers(5)');
    expect([answer.status, await answer.text()]).toEqual([500, expect.stringContaining('NOT_ENOUGH_SPACE')]);
    expect(await died).toBe('exit code 1');
    embedded.server = await startEmbeddedClickHouse(embedded.options);
    expect(await value('SELECT count(), sum(a) FROM full')).toBe('5\t10');
    await shared.command({ query: 'INSERT INTO full SELECT number + 5 FROM numbers(5)' });
    expect(await value('SELECT count(), sum(a) FROM full')).toBe('10\t45');
  });

  test('a merge whose files the disk does not take ends the process, and its sources are loaded', async () => {
    await shared.command({ query: 'CREATE TABLE merged (a Int64) ENGINE = MergeTree ORDER BY a' });
    await shared.command({ query: 'SYSTEM STOP MERGES merged' });
    for (let i = 0; i < 3; i += 1) await shared.command({ query: `INSERT INTO merged SELECT ${i}` });
    const died = new Promise<string>((resolve) => embedded.server.onExit(resolve));
    execFileSync('prlimit', ['--pid', String(embedded.server.pid), '--fsize=0:unlimited']);
    await shared.command({ query: 'SYSTEM START MERGES merged' }).catch(() => {});
    await shared.command({ query: 'OPTIMIZE TABLE merged FINAL' }).catch(() => {});
    expect(await died).toBe('exit code 1');
    embedded.server = await startEmbeddedClickHouse(embedded.options);
    expect(await value('SELECT count(), sum(a) FROM merged')).toBe('3\t3');
  });

  test('inserts are refused while little of the disk is free; reads go on, and a partition can be dropped', async () => {
    await shared.command({ query: 'CREATE TABLE little (a Int64) ENGINE = MergeTree PARTITION BY a ORDER BY a' });
    for (let a = 0; a < 3; a += 1) await shared.command({ query: `INSERT INTO little SELECT ${a}` });
    await restartWanting(serverLimits.insertsFreeShare);
    const { pid } = embedded.server;
    const answer = await post('', 'INSERT INTO little SELECT 3');
    expect([answer.status, await answer.text()]).toEqual([500, expect.stringContaining('NOT_ENOUGH_SPACE')]);
    expect(await value('SELECT count(), sum(a) FROM little')).toBe('3\t3');
    await shared.command({ query: 'ALTER TABLE little DROP PARTITION 1' });
    expect(await value('SELECT count(), sum(a) FROM little')).toBe('2\t2');
    expect(startedTicksOf(pid)).toBeDefined();
    await restartWanting(undefined);
    await shared.command({ query: 'INSERT INTO little SELECT 3' });
    expect(await value('SELECT count(), sum(a) FROM little')).toBe('3\t5');
  });

  test('nothing is merged while the disk has no room for the result, and a delete is carried out later', async () => {
    await shared.command({ query: 'CREATE TABLE apart (a Int64) ENGINE = MergeTree ORDER BY a' });
    await shared.command({ query: 'SYSTEM STOP MERGES apart' });
    for (let a = 0; a < 3; a += 1) await shared.command({ query: `INSERT INTO apart SELECT ${a}` });
    await restartWanting(serverLimits.reservedFreeShare);
    await shared.command({ query: 'OPTIMIZE TABLE apart FINAL' }).catch(() => {});
    const parts = "SELECT count() FROM system.parts WHERE table = 'apart' AND active";
    expect(await value(parts)).toBe('3');
    await shared.command({ query: 'DELETE FROM apart WHERE a = 1 SETTINGS lightweight_deletes_sync = 0' });
    expect(await value('SELECT count(), sum(a) FROM apart')).toBe('3\t3');
    await restartWanting(undefined);
    await shared.command({ query: 'OPTIMIZE TABLE apart FINAL' });
    expect(await value(parts)).toBe('1');
    expect(await value('SELECT count(), sum(a) FROM apart')).toBe('2\t2');
  });

  test('a start writes no configuration that is on the disk already: a full disk would not take it', async () => {
    const written = () => lstatSync(join(embedded.options.dir, 'engine.xml'), { bigint: true }).mtimeNs;
    const before = written();
    await embedded.server.stop();
    embedded.server = await startEmbeddedClickHouse(embedded.options);
    expect(written()).toBe(before);
  });

  test('a start ends the server that an earlier primary left running', async () => {
    const leftover = embedded.server.pid;
    const next = await startEmbeddedClickHouse(embedded.options);
    expect(startedTicksOf(leftover)).toBeUndefined();
    embedded.server = next;
    expect(await value('SELECT count() FROM kept')).toBe('20');
  });

  test('a stop kills what runs too long and ends cleanly', async () => {
    const ended = new Promise<string>((resolve) => embedded.server.onExit(resolve));
    const asked = shared.query({ query: slowQuery }).catch((error: Error) => error);
    expect(await eventually(async () => (await running('SELECT count() FROM numbers(1000000')) === 1)).toBe(true);
    await embedded.server.stop();
    expect(await asked).toBeInstanceOf(Error);
    expect(await ended).toBe('exit code 0');
    embedded.server = await startEmbeddedClickHouse(embedded.options);
  });

  test('it ends when its parent is gone', async () => {
    const script = `require('node:child_process').fork(${JSON.stringify(builtServer())}, { env: process.env, stdio: 'inherit' })
      .on('message', (m) => process.send(m)); setInterval(() => {}, 1000)`;
    const settings = {
      ...embedded.options,
      dir: `${embedded.options.dir}-3`,
      port: 0,
      user: 'default',
      log: undefined,
    };
    const env = { ...process.env, MILLRACE_EMBEDDED_CLICKHOUSE: JSON.stringify(settings) };
    const parent: ChildProcess = fork('/dev/null', {
      execArgv: ['-e', script],
      env,
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    const [message] = (await once(parent, 'message')) as [{ ready: { port: number } }];
    const { port } = message.ready;
    expect((await fetch(`http://127.0.0.1:${port}/ping`)).status).toBe(200);
    await endProcess(parent.pid!, 'SIGKILL', 2000);
    const gone = async () =>
      fetch(`http://127.0.0.1:${port}/ping`).then(
        () => false,
        () => true,
      );
    expect(await eventually(gone)).toBe(true);
  });
});
