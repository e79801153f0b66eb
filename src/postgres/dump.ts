/**
 * Writes all tables of the database as COPY data of one moment (one REPEATABLE READ snapshot), and restores them into a
 * migrated database without other users. For `npm run backup` and `npm run restore`: the embedded server has no
 * pg_dump, and its WAL keeps too little for a copy of its files. Writers are not blocked.
 */
import type { Client as PgClient } from 'pg';
import { assert, StartError } from '../base/errors.ts';
import { Client } from './driver.ts';

export interface PostgresDump {
  /** Numbers of the migrations that made the tables. */
  migrations: number[];
  tables: { name: string; columns: string[]; rows: number }[];
  sequences: { name: string; last: string; called: boolean }[];
}

interface ByteSink {
  write(chunk: Buffer): Promise<void>;
  end(): Promise<void>;
}

const migrationsTable = 'schema_migrations';
/** The oldest transaction id that a row can have; ids of the old cluster mean nothing in the new one. */
const settledTransaction = "'3'::xid8";

export async function dumpTables(
  url: string,
  open: (table: string) => Promise<ByteSink>,
  tablesLeftOut: readonly string[],
): Promise<PostgresDump> {
  return await withClient(url, async (client) => {
    await client.query('begin isolation level repeatable read read only');
    const { rows: migrations } = await client.query<{ number: number }>(
      `select number from ${migrationsTable} order by number`,
    );
    const { rows: columns } = await client.query<{ table: string; name: string; type: string }>(columnsOfTables);
    const dump: PostgresDump = { migrations: migrations.map(({ number }) => number), tables: [], sequences: [] };
    for (const table of new Set(columns.map((column) => column.table))) {
      if (table === migrationsTable || tablesLeftOut.includes(table)) continue;
      const own = columns.filter((column) => column.table === table);
      const values = own.map(({ name, type }) => (type === 'xid8' ? settledTransaction : quoted(name)));
      const sink = await open(table);
      const rows = await copyOut(client, `select ${values.join(', ')} from ${quoted(table)}`, sink);
      await sink.end();
      dump.tables.push({ name: table, columns: own.map(({ name }) => name), rows });
    }
    // A sequence has no snapshot. It is read last, so its number is above every number in the dumped rows.
    const { rows: names } = await client.query<{ name: string }>(
      'select sequencename as name from pg_sequences where schemaname = current_schema() order by 1',
    );
    for (const { name } of names) {
      const { rows } = await client.query<{ last: string; called: boolean }>(
        `select last_value::text as last, is_called as called from ${quoted(name)}`,
      );
      dump.sequences.push({ name, ...rows[0]! });
    }
    await client.query('commit');
    return dump;
  });
}

/** Loads all rows or none. The user must be a superuser: triggers and foreign keys are off while rows are loaded. */
export async function loadTables(
  url: string,
  { tables, sequences }: PostgresDump,
  open: (table: string) => AsyncIterable<Buffer>,
): Promise<void> {
  await withClient(url, async (client) => {
    await client.query('begin');
    await client.query('set local session_replication_role = replica');
    if (tables.length > 0) await client.query(`truncate ${tables.map(({ name }) => quoted(name)).join(', ')}`);
    for (const { name, columns, rows } of tables) {
      const text = `copy ${quoted(name)} (${columns.map(quoted).join(', ')}) from stdin`;
      const loaded = await copyIn(client, text, open(name));
      if (loaded !== rows) throw new StartError(`The table ${name} got ${loaded} rows, the backup has ${rows}.`);
    }
    for (const { name, last, called } of sequences) {
      await client.query('select setval($1::regclass, $2::bigint, $3)', [quoted(name), last, called]);
    }
    await client.query('commit');
    await client.query('analyze');
  });
}

const columnsOfTables = `
  select c.relname as table, a.attname as name, format_type(a.atttypid, null) as type
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid
   where n.nspname = current_schema() and c.relkind = 'r'
     and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
   order by c.relname, a.attnum`;

async function withClient<Result>(url: string, work: (client: PgClient) => Promise<Result>): Promise<Result> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 10_000, application_name: 'millrace' });
  let lost: Error | undefined;
  client.on('error', (error) => {
    lost = error;
  });
  try {
    await client.connect();
    return await work(client);
  } catch (error) {
    throw lost ?? error;
  } finally {
    await client.end().catch(() => {});
  }
}

/** The part of the driver's connection that is used here. */
interface Connection {
  query(text: string): void;
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
  sendCopyFail(message: string): void;
  stream: NodeJS.WritableStream & {
    pause(): void;
    resume(): void;
    writableNeedDrain: boolean;
    destroy(reason: Error): void;
  };
}

const writeBytes = 256 * 1024;

/** A submittable of the driver, which receives each message of the answer. */
abstract class Copy {
  callback: (error: Error | null) => void = () => {};
  rows = 0;
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  submit(connection: Connection): void {
    connection.query(this.#text);
  }

  handleCommandComplete({ text }: { text: string }): void {
    this.rows = Number(/^COPY (\d+)$/.exec(text)?.[1]);
  }

  handleError(error: Error): void {
    this.callback(error);
  }

  abstract handleReadyForQuery(connection: Connection): void;
}

/** The socket is not read while the sink is busy. */
class CopyOut extends Copy {
  readonly #sink: ByteSink;
  #chunks: Buffer[] = [];
  #bytes = 0;
  #writing: Promise<void> = Promise.resolve();

  constructor(select: string, sink: ByteSink) {
    super(`copy (${select}) to stdout`);
    this.#sink = sink;
  }

  /** The chunk is valid during the call only. */
  handleCopyData({ chunk }: { chunk: Buffer }, { stream }: Connection): void {
    this.#chunks.push(Buffer.from(chunk));
    this.#bytes += chunk.length;
    if (this.#bytes < writeBytes) return;
    stream.pause();
    this.#flush();
    this.#writing.then(
      () => stream.resume(),
      // The reason becomes the error of the connection, and so of the dump.
      (reason: Error) => stream.destroy(reason),
    );
  }

  handleReadyForQuery(): void {
    this.#flush();
    this.#writing.then(
      () => this.callback(null),
      (error: Error) => this.callback(error),
    );
  }

  #flush(): void {
    const chunk = Buffer.concat(this.#chunks);
    this.#chunks = [];
    this.#bytes = 0;
    this.#writing = this.#writing.then(() => this.#sink.write(chunk));
    this.#writing.catch(() => {});
  }
}

class CopyIn extends Copy {
  readonly #source: AsyncIterable<Buffer>;
  #failed = false;

  constructor(text: string, source: AsyncIterable<Buffer>) {
    super(text);
    this.#source = source;
  }

  handleCopyInResponse(connection: Connection): void {
    this.#send(connection).catch((error: Error) => connection.sendCopyFail(error.message));
  }

  override handleError(error: Error): void {
    this.#failed = true;
    super.handleError(error);
  }

  handleReadyForQuery(): void {
    this.callback(null);
  }

  async #send(connection: Connection): Promise<void> {
    for await (const chunk of this.#source) {
      if (this.#failed) return;
      connection.sendCopyFromChunk(chunk);
      if (connection.stream.writableNeedDrain) {
        const { stream } = connection;
        await new Promise<void>((resolve) => {
          const end = () => {
            stream.off('drain', end).off('close', end);
            resolve();
          };
          stream.once('drain', end).once('close', end);
        });
      }
    }
    if (!this.#failed) connection.endCopyFrom();
  }
}

async function copyOut(client: PgClient, select: string, sink: ByteSink): Promise<number> {
  return await run(client, new CopyOut(select, sink));
}

async function copyIn(client: PgClient, text: string, source: AsyncIterable<Buffer>): Promise<number> {
  return await run(client, new CopyIn(text, source));
}

async function run(client: PgClient, copy: Copy): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    const callback: Copy['callback'] = (error) => (error ? reject(error) : resolve());
    copy.callback = callback;
    client.query(copy as never);
  });
  assert(Number.isInteger(copy.rows), 'the server says how many rows it copied');
  return copy.rows;
}

function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
