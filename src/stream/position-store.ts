/**
 * How far the streams are stored, in PostgreSQL (table `streams`), which is apart from the servers of the streams: so
 * a stream that was removed, made again or cut is noticed.
 */
import { hostname } from 'node:os';
import { forgetJournal, giveBackWriterId, takeWriterId } from '../ingest/journal-store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { LaneState } from './stream-link.ts';

export interface StreamPosition {
  name: string;
  /** The id of the stream among the journals. */
  writer: number;
  /** The time at which the stream was made, as the string that its servers return. */
  created: string;
  /** ClickHouse has every message up to this one. */
  floor: number;
  /** The newest message at the last comparison. */
  last: number;
}

export async function readStreamPosition(queries: Queries, name: string): Promise<StreamPosition | undefined> {
  const [row] = await queries.query<Omit<StreamPosition, 'floor' | 'last'> & { floor: string; last: string }>(
    'select name, writer, created, floor::text, last::text from streams where name = $1',
    [name],
    { prepared: true },
  );
  return row && { ...row, floor: Number(row.floor), last: Number(row.last) };
}

/** A stream that hosts of this installation have used, whatever the settings are now. */
export interface KnownStream extends Pick<StreamPosition, 'name' | 'created' | 'floor' | 'last'> {
  /** The servers that it is at, with commas between them; empty: not known. */
  servers: string;
  /** Frames may have come after the position. */
  accepting: boolean;
}

export async function readKnownStreams(queries: Queries): Promise<KnownStream[]> {
  const rows = await queries.query<Omit<KnownStream, 'floor' | 'last'> & { floor: string; last: string }>(
    'select name, created, servers, accepting, floor::text, last::text from streams order by name',
    [],
  );
  return rows.map((row) => ({ ...row, floor: Number(row.floor), last: Number(row.last) }));
}

/** The frames that ClickHouse did not have at the position. */
export function waitingFramesOf({ floor, last }: Pick<KnownStream, 'floor' | 'last'>): number {
  return Math.max(0, last - floor);
}

/** Called when the servers say that ClickHouse has everything of a stream to which no host publishes any more. */
export async function markStored(queries: Queries, { name, last }: Pick<KnownStream, 'name' | 'last'>): Promise<void> {
  await queries.query('update streams set floor = last, accepting = false where name = $1 and last <= $2', [
    name,
    last,
  ]);
}

/** Deletes do not wait for the stream any more. Returns false when there is no such stream. */
export async function forgetStream(postgres: Postgres, name: string): Promise<boolean> {
  const [row] = await postgres.query<{ writer: number }>('select writer from streams where name = $1', [name]);
  if (row === undefined) return false;
  await forgetJournal(postgres, { writer: row.writer, orderRecovered: null, orderHigh: '0' });
  await postgres.query('delete from streams where name = $1', [name]);
  return true;
}

/** Called by a process that stops: its last frames may be later than the position. */
export async function noteLast(queries: Queries, name: string, last: number): Promise<void> {
  await queries.query('update streams set last = greatest(last, $2) where name = $1', [name, last]);
}

/**
 * Replaces a position. Returns false when another process has replaced it since it was read, as after this process was
 * stopped for longer than its lease.
 */
export async function keepStreamPosition(
  queries: Queries,
  read: Omit<StreamPosition, 'writer'>,
  { created, floor, last }: Omit<StreamPosition, 'writer' | 'name'>,
  { servers, accepting }: Pick<KnownStream, 'servers' | 'accepting'>,
): Promise<boolean> {
  const rows = await queries.query(
    `update streams set created = $2, floor = $3, last = $4, servers = $8, accepting = $9
      where name = $1 and created = $5 and floor = $6 and last = $7 returning name`,
    [read.name, created, floor, last, read.created, read.floor, read.last, servers, accepting],
  );
  return rows.length > 0;
}

/** Adds a stream that was not known. Returns undefined while no writer id is free. */
export async function addStream(
  queries: Queries,
  name: string,
  { created, first, last }: Pick<LaneState, 'created' | 'first' | 'last'>,
): Promise<StreamPosition | undefined> {
  const writer = await takeWriterId(queries, hostname(), created);
  if (writer === undefined) return undefined;
  await queries.query(
    `insert into streams (name, writer, created, floor, last) values ($1, $2, $3, $4, $5)
     on conflict (name) do nothing`,
    [name, writer, created, first - 1, last],
  );
  const position = await readStreamPosition(queries, name);
  // Another host added the stream at this moment.
  if (position && position.writer !== writer) await giveBackWriterId(queries, writer);
  return position;
}
