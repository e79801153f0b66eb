/**
 * Gives the frames of one lane as plain JSON to a stream of their own, `<name>-json` (`STREAM_JSON`). A consumer of its
 * own takes the frames, so neither ingest nor shipping waits for it. A frame is confirmed when the servers have synced
 * all of its messages: each message is given at least once.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Consumer, JsMsg } from '@nats-io/jetstream';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { type Lane, laneNames } from '../journal/journal.ts';
import { Fetches } from './fetches.ts';
import { type JsonFilter, type JsonMessage, jsonFilterOf, jsonMessages } from './json-messages.ts';
import type { Senders } from './senders.ts';
import type { StreamClient } from './stream-client.ts';
import type { StreamLink } from './stream-link.ts';
import { jsonConsumerName, jsonStreamName, type StreamSettings, streamName } from './stream-names.ts';
import { pointsOf } from './stream-points.ts';

interface RelayDeps {
  client: StreamClient;
  settings: StreamSettings;
  senders: Senders;
  log: Log;
  metrics: Metrics;
}

/** Points whose messages this process awaits, before it takes another frame; and messages that are awaited at once. */
const pointsMax = 2_000;
const messagesMax = 512;
const publishMsMax = 5_000;
const againMs = 1_000;
const messageHeadBytes = 1_024;

export class JsonRelay {
  readonly #lane: Lane;
  readonly #deps: RelayDeps;
  readonly #filter: JsonFilter;
  readonly #messages: Counter;
  readonly #tooLarge: Counter;
  readonly #stopping = new AbortController();
  readonly #open = new Set<Promise<void>>();
  readonly #fetches = new Fetches();
  #running: Promise<void> = Promise.resolve();
  #inFlight = 0;
  #onRoom: (() => void) | undefined;
  #failure = '';
  /** A frame could not be given. */
  #isFailing = false;

  constructor(lane: Lane, deps: RelayDeps) {
    this.#lane = lane;
    this.#deps = deps;
    this.#filter = jsonFilterOf(deps.settings.json);
    const { metrics } = deps;
    this.#messages = metrics.counter('stream_json_messages_total', 'Messages that were given as JSON.');
    this.#tooLarge = metrics.counter(
      'stream_json_too_large_total',
      'Data points that were not given as JSON, because they need more than max_payload of the servers.',
    );
  }

  start(): void {
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.#stopping.abort();
    this.#onRoom?.();
    await this.#fetches.end(this.#running);
  }

  async #run(): Promise<void> {
    const { client, settings } = this.#deps;
    const { signal } = this.#stopping;
    let consumer: Consumer | undefined;
    while (!signal.aborted) {
      const { link } = client;
      try {
        if (link) {
          consumer ??= await link.consumer(streamName(settings, this.#lane), jsonConsumerName);
          await this.#fetches.fetch(consumer, (frame) => this.#receive(link, frame));
          if (!this.#isFailing) {
            this.#note('');
            continue;
          }
          this.#isFailing = false;
          // The stream of JSON may have been removed.
          await client.prepareAgain();
        }
      } catch (error) {
        // `stream-watch.ts` makes a missing stream again.
        consumer = undefined;
        this.#note(messageOf(error));
      }
      await sleep(againMs, undefined, { signal }).catch(() => {});
    }
    await Promise.all(this.#open);
  }

  /** Begins to relay a frame, when there is room for its points. Returns the bytes of the frame. */
  async #receive(link: StreamLink, frame: JsMsg): Promise<number> {
    while (this.#inFlight >= pointsMax && !this.#stopping.signal.aborted) {
      await new Promise<void>((resolve) => {
        this.#onRoom = resolve;
      });
    }
    const relaying: Promise<void> = this.#relay(link, frame).finally(() => this.#open.delete(relaying));
    this.#open.add(relaying);
    return frame.data.length;
  }

  /** Never rejects: a frame that could not be given comes again. */
  async #relay(link: StreamLink, frame: JsMsg): Promise<void> {
    let waiting = 0;
    try {
      // Damage is kept and reported by shipping (`lane-reader.ts`).
      const points = pointsOf(frame.data) ?? [];
      this.#inFlight += waiting = points.length;
      const senders = await this.#deps.senders.find(new Set(points.map(({ device }) => device)));
      const { name } = this.#deps.settings;
      const bytesMax = link.payloadBytesMax - messageHeadBytes;
      const { messages, tooLarge } = jsonMessages(name, points, senders, this.#filter, bytesMax);
      await this.#publishAll(link, frame, messages);
      frame.ack();
      this.#messages.add(messages.length);
      this.#tooLarge.add(tooLarge);
    } catch (error) {
      this.#note(messageOf(error));
      this.#isFailing = true;
      frame.nak(againMs);
    } finally {
      this.#inFlight -= waiting;
      this.#onRoom?.();
    }
  }

  async #publishAll(link: StreamLink, frame: JsMsg, messages: readonly JsonMessage[]): Promise<void> {
    const stream = jsonStreamName(this.#deps.settings);
    for (let from = 0; from < messages.length; from += messagesMax) {
      if (from > 0) frame.working();
      const some = messages.slice(from, from + messagesMax);
      const publish = ({ subject, body }: JsonMessage) =>
        link.publish(stream, subject, Buffer.from(body), publishMsMax);
      await Promise.all(some.map(publish));
    }
  }

  /** Logs a failure when it begins or changes, and its end; an empty string is no failure. */
  #note(reason: string): void {
    const { log } = this.#deps;
    const lane = laneNames[this.#lane];
    if (reason !== this.#failure && !this.#stopping.signal.aborted) {
      if (reason === '') log.info('stream_json_goes_on', { lane });
      else log.warn('stream_json_waits', { lane, reason });
    }
    this.#failure = reason;
  }
}
