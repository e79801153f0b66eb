/**
 * Finds streams that may hold frames and that no host reads with the present settings: after a change of STREAM_NAME,
 * or of STREAM_URL and the level, frames would wait there unseen. PostgreSQL knows every stream that hosts have used
 * (table `streams`). Other servers with the same name are refused where streams are made (`prepare-streams.ts`).
 */
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { lanes } from '../journal/journal.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { type KnownStream, markStored, readKnownStreams, waitingFramesOf } from './position-store.ts';
import { consumerNotFound, found, StreamLink, streamNotFound } from './stream-link.ts';
import { type StreamSettings, streamName } from './stream-names.ts';

const againMs = 30_000;

interface Stranded {
  stream: string;
  /** Says how many frames it holds, and what ships them. */
  reason: string;
}

/** Returns the streams that are left behind. */
export async function findStranded(queries: Queries, settings: StreamSettings): Promise<Stranded[]> {
  const own = new Set(settings.url === '' ? [] : lanes.map((lane) => streamName(settings, lane)));
  const left = (await readKnownStreams(queries)).filter(
    (stream) => !own.has(stream.name) && (waitingFramesOf(stream) > 0 || stream.accepting),
  );
  if (left.length === 0) return [];
  const link = settings.url === '' ? undefined : await openLink(settings);
  try {
    const stranded: Stranded[] = [];
    for (const stream of left) {
      const frames = link === undefined ? undefined : await waitingIn(link, stream.name);
      if (frames === 0) await markStored(queries, stream);
      else stranded.push({ stream: stream.name, reason: strandedSentence(stream, frames) });
    }
    return stranded;
  } finally {
    await link?.close().catch(() => {});
  }
}

/** Returns undefined when no server answers. */
async function openLink(settings: StreamSettings): Promise<StreamLink | undefined> {
  try {
    return await StreamLink.open(settings, 'millrace streams');
  } catch {
    return undefined;
  }
}

/** Returns how many frames no process has confirmed; undefined when the servers have no such stream, or do not say. */
async function waitingIn(link: StreamLink, name: string): Promise<number | undefined> {
  try {
    const info = await found(link.streamInfo(name), streamNotFound);
    if (info === undefined || info.state.messages === 0) return info && 0;
    const consumer = await found(link.consumerInfo(name), consumerNotFound);
    return consumer ? consumer.num_pending + consumer.num_ack_pending : info.state.messages;
  } catch {
    return undefined;
  }
}

/** `frames`: what its servers said; undefined: what was known at its last use. */
function strandedSentence(stream: KnownStream, frames: number | undefined): string {
  const { name, servers, accepting } = stream;
  const known = frames ?? waitingFramesOf(stream);
  const more = frames === undefined && accepting ? ' or more' : '';
  const holds = known === 0 ? 'may hold frames' : `holds ${known}${more} frames`;
  const settings = `${servers === '' ? '' : `STREAM_URL=${servers} and `}STREAM_NAME=${prefixOf(name)}`;
  return (
    `the stream ${name} ${holds} that ClickHouse does not have, and no host reads it with these settings: start all ` +
    `hosts with ${settings}, and any INGEST_ACK, until millrace_stream_frames is 0 for both lanes; when the stream is ` +
    `gone for good, run "npm run stream -- forget ${name}"`
  );
}

function prefixOf(name: string): string {
  return name.replace(/-(live|late)$/, '');
}

interface StrandedDeps {
  queries: Queries;
  settings: StreamSettings;
  log: Log;
}

/** Follows, for the primary, which streams are left behind. */
export class StrandedStreams {
  readonly #deps: StrandedDeps;
  #stop: (() => void) | undefined;
  #reading: Promise<void> | undefined;
  /** Reasons for readiness. */
  sentences: string[] = [];

  constructor(deps: StrandedDeps) {
    this.#deps = deps;
  }

  start(): void {
    void this.read();
    this.#stop = systemScheduler.every(againMs, () => void this.read());
  }

  async stop(): Promise<void> {
    this.#stop?.();
    await this.#reading;
  }

  /** Resolves when they are known, or PostgreSQL does not answer. */
  read(): Promise<void> {
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  async #read(): Promise<void> {
    const { queries, settings, log } = this.#deps;
    try {
      const found = await findStranded(queries, settings);
      for (const { stream, reason } of found) {
        if (!this.sentences.includes(reason)) log.error('stream_stranded', { stream, reason });
      }
      this.sentences = found.map(({ reason }) => reason);
    } catch (error) {
      if (!isAway(error)) log.warn('streams_not_compared', { reason: messageOf(error) });
    }
  }
}
