/**
 * Reads the frames of streams for another reader than shipping, by ordered consumers, which the servers forget when the
 * reader ends. A slow reader delays no other one: a frame that ClickHouse has leaves its stream, read or not.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { DeliverPolicy } from '@nats-io/jetstream';
import { StartError } from '../base/errors.ts';
import { lanes } from '../journal/journal.ts';
import { connectReason } from './connect-reason.ts';
import { found, StreamLink, streamNotFound } from './stream-link.ts';
import { type StreamSettings, streamName } from './stream-names.ts';

const framesAtOnce = 250;
const fetchMsMax = 1_000;

interface Wanted {
  /** A stream that has copies of frames; undefined: the streams of both lanes. */
  stream: string | undefined;
  /** Which frames; undefined = all. */
  subject: string | undefined;
  /** True: frames that come from now on, until `signal`. False: frames that are there. */
  follows: boolean;
  signal: AbortSignal;
}

/** Yields the bytes of frames. Throws a StartError when no server answers, or a stream is missing. */
export async function* readFrames(settings: StreamSettings, wanted: Wanted): AsyncGenerator<Uint8Array> {
  let link: StreamLink | undefined;
  try {
    const opened = (link = await StreamLink.open(settings, 'millrace stream'));
    const streams = wanted.stream === undefined ? lanes.map((lane) => streamName(settings, lane)) : [wanted.stream];
    for (const stream of streams) await checkFrames(opened, stream);
    yield* merged(streams.map((stream) => readStream(opened, stream, wanted)));
  } catch (error) {
    if (error instanceof StartError) throw error;
    throw new StartError(`The streams at STREAM_URL cannot be read: ${connectReason(error)}.`);
  } finally {
    await link?.close();
  }
}

/** Throws a StartError when the stream is missing, or holds something else than frames. */
async function checkFrames(link: StreamLink, stream: string): Promise<void> {
  const info = await found(link.manager.streams.info(stream), streamNotFound);
  if (info === undefined) {
    throw new StartError(
      `The servers at STREAM_URL have no stream ${stream}: "nats stream ls" lists those that they have. ` +
        'Millrace makes its own at its first start with STREAM_URL (STREAM_NAME).',
    );
  }
  // Every subject of frames ends with a bucket, none of JSON does.
  const json = info.config.subjects?.find((subject) => subject.endsWith('.json.>'));
  if (json !== undefined) {
    throw new StartError(
      `The stream ${stream} holds JSON, which needs no decoding: read it with any client of NATS, as "nats sub '${json}'".`,
    );
  }
}

async function* readStream(link: StreamLink, stream: string, wanted: Wanted): AsyncGenerator<Uint8Array> {
  const { subject, follows, signal } = wanted;
  const consumer = await link.orderedConsumer(stream, {
    deliver_policy: follows ? DeliverPolicy.New : DeliverPolicy.All,
    ...(subject !== undefined && { filter_subjects: subject }),
  });
  const fetch = () => consumer.fetch({ max_messages: framesAtOnce, expires: fetchMsMax });
  for (let isEnd = false; !isEnd && !signal.aborted; ) {
    // A consumer that was just made may have no leader yet.
    const messages = await fetch().catch(() => sleep(fetchMsMax).then(fetch));
    isEnd = !follows;
    for await (const { data } of messages) {
      isEnd = false;
      yield data;
    }
  }
}

/** Yields what any of them yields, and takes the next one of each only when its last one was used. */
async function* merged<T>(sources: AsyncGenerator<T>[]): AsyncGenerator<T> {
  const step = async (source: AsyncGenerator<T>) => ({ source, result: await source.next() });
  const steps = new Map(sources.map((source) => [source, step(source)]));
  while (steps.size > 0) {
    const { source, result } = await Promise.race(steps.values());
    if (result.done) {
      steps.delete(source);
    } else {
      yield result.value;
      steps.set(source, step(source));
    }
  }
}
