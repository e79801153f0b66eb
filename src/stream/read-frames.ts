/**
 * Reads the frames of streams for another reader than shipping, by ordered consumers, which the servers forget when the
 * reader ends. A slow reader delays no other one: a frame that ClickHouse has leaves its stream, read or not.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Consumer, type ConsumerMessages, DeliverPolicy, JetStreamApiError, type JsMsg } from '@nats-io/jetstream';
import { StartError } from '../base/errors.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { lanes } from '../journal/journal.ts';
import { connectReason } from './connect-reason.ts';
import { found, StreamLink, streamNotFound } from './stream-link.ts';
import { type StreamSettings, streamName } from './stream-names.ts';

const framesAtOnce = 250;
const fetchMsMax = 1_000;
/** Time after the last message at which a fetch, which lasts `fetchMsMax`, is given up. */
const stallMs = 3_000;
/** Time in which another server may take over. */
const failingMsMax = 60_000;

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

/**
 * Yields the frames of one stream in its order. The servers forget the consumer when the server that holds it dies, and
 * the library then waits without end: after each failure or stall another consumer begins behind the last frame.
 */
async function* readStream(link: StreamLink, stream: string, wanted: Wanted): AsyncGenerator<Uint8Array> {
  const { subject, follows, signal } = wanted;
  const { last } = await link.laneState(stream);
  let next = follows ? last + 1 : 1;
  let consumer: Consumer | undefined;
  let failingSince: number | undefined;
  for (let isEnd = false; !isEnd && !signal.aborted; ) {
    try {
      consumer ??= await link.orderedConsumer(stream, {
        deliver_policy: DeliverPolicy.StartSequence,
        opt_start_seq: next,
        ...(subject !== undefined && { filter_subjects: subject }),
      });
      const messages = await consumer.fetch({ max_messages: framesAtOnce, expires: fetchMsMax });
      isEnd = !follows;
      for await (const { data, seq } of untilStall(messages)) {
        isEnd = false;
        next = seq + 1;
        yield data;
      }
      failingSince = undefined;
    } catch (error) {
      isEnd = false;
      consumer = undefined;
      failingSince ??= performance.now();
      const isGone = error instanceof JetStreamApiError && error.code === streamNotFound;
      if (isGone || performance.now() - failingSince > failingMsMax) throw error;
      await sleep(fetchMsMax);
    }
  }
}

/** Yields the messages of a fetch. Throws when neither a message nor the end comes, although its time is long over. */
async function* untilStall(messages: ConsumerMessages): AsyncGenerator<JsMsg> {
  let isStalled = false;
  const watch = () => {
    return systemScheduler.after(stallMs, () => {
      isStalled = true;
      messages.stop();
    });
  };
  let stopWatch = watch();
  try {
    for await (const message of messages) {
      stopWatch();
      yield message;
      stopWatch = watch();
    }
  } finally {
    stopWatch();
  }
  if (isStalled) throw new Error('the server that held the reader does not answer');
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
