/**
 * Checks that streams and their consumers keep the promise of `ingest.ack: stream`, and whose they are. What a stream
 * cannot keep is a StartError that names the reason and the command that changes it.
 */
import { type ConsumerInfo, DiscardPolicy, RetentionPolicy, StorageType, type StreamInfo } from '@nats-io/jetstream';
import { counted } from '../base/counted.ts';
import { StartError } from '../base/errors.ts';
import { lanes } from '../journal/journal.ts';
import { streamFormat } from './stream-frame.ts';
import { consumerNotFound, found, maySkip, payloadBytesMin, type StreamLink, streamNotFound } from './stream-link.ts';
import { consumerName, type StreamSettings, streamName } from './stream-names.ts';

/** A member of the metadata of a stream: the restore that has taken it up; absent: none. */
export const copyMember = 'millrace_copy';

/** Returns the streams of both lanes; undefined for one that is missing. */
export function existingStreams(
  { manager }: StreamLink,
  settings: StreamSettings,
): Promise<(StreamInfo | undefined)[]> {
  return Promise.all(lanes.map((lane) => found(manager.streams.info(streamName(settings, lane)), streamNotFound)));
}

/**
 * Throws a StartError when the streams were changed so that an acknowledged frame could be lost. Their limits are
 * compared at a start only: an operator may raise them while hosts run.
 */
export async function checkRunningStreams({ manager }: StreamLink, settings: StreamSettings): Promise<void> {
  for (const lane of lanes) {
    const name = streamName(settings, lane);
    // A missing stream or consumer is made again (`stream-watch.ts`).
    const info = await found(manager.streams.info(name), streamNotFound);
    if (info) checkKept(info, settings);
    const consumer = info && (await found(manager.consumers.info(name, consumerName), consumerNotFound));
    if (consumer) checkConsumer(name, consumer);
  }
}

export function formatOfStream({ config }: StreamInfo): number {
  return Number(config.metadata?.['millrace_format']);
}

export function checkStreamOwner(info: StreamInfo, installation: string): void {
  const { metadata } = info.config;
  const format = formatOfStream(info);
  const owner = metadata?.['millrace_installation'] ?? '';
  if (!Number.isInteger(format)) {
    refuseStream(
      info,
      'was not made by Millrace',
      'choose another STREAM_NAME, or remove it if it took the place of a stream',
    );
  }
  if (format > streamFormat) refuseStream(info, 'was made by a later version', 'start that version');
  if (owner !== '' && installation !== '' && owner !== installation) {
    refuseStream(info, 'belongs to another installation', 'choose another STREAM_NAME');
  }
}

/** Checks that each frame is kept until it is removed. */
function checkKept(info: StreamInfo, settings: StreamSettings): void {
  const { config } = info;
  const { name } = config;
  if (config.num_replicas < settings.replicas) {
    refuseStream(
      info,
      `has ${counted(config.num_replicas, 'replica')} and STREAM_REPLICAS is ${settings.replicas}`,
      `run "nats stream edit ${name} --replicas ${settings.replicas}", or change the setting`,
    );
  }
  if (config.storage !== StorageType.File) refuseStream(info, 'is kept in memory only', 'remove it when it is empty');
  if (config.discard !== DiscardPolicy.New) {
    refuseStream(info, 'discards its oldest frames when it is full', `run "nats stream edit ${name} --discard new"`);
  }
  if (config.retention !== RetentionPolicy.Limits) {
    refuseStream(info, 'does not have the retention "limits"', 'remove it when it is empty');
  }
  if (config.max_age > 0 || config.max_msgs > 0 || config.max_msgs_per_subject > 0) {
    refuseStream(
      info,
      'forgets frames by their age or number',
      `run "nats stream edit ${name} --max-age 0 --max-msgs=-1 --max-msgs-per-subject=-1"`,
    );
  }
}

export function checkStream(
  info: StreamInfo,
  subjects: string[],
  installation: string,
  settings: StreamSettings,
): void {
  const { config } = info;
  const { name } = config;
  checkStreamOwner(info, installation);
  checkKept(info, settings);
  if (config.max_msg_size > 0 && config.max_msg_size < payloadBytesMin) {
    refuseStream(
      info,
      `takes messages of ${config.max_msg_size} bytes only`,
      `run "nats stream edit ${name} --max-msg-size=-1"`,
    );
  }
  if (!subjects.every((subject) => config.subjects.includes(subject))) {
    refuseStream(info, `does not take the subject ${subjects.join()}`, 'choose another STREAM_NAME');
  }
}

/** Names both streams at once: an operator who changes the setting needs both commands. */
export function checkStreamLimits(streams: readonly (StreamInfo | undefined)[], { bytesMax }: StreamSettings): void {
  const others = streams.filter((info) => info !== undefined).filter(({ config }) => config.max_bytes !== bytesMax);
  if (others.length === 0) return;
  const each = (text: (info: StreamInfo) => string) => others.map(text).join(' and ');
  const what = each(({ config }) => `the stream ${config.name} holds ${config.max_bytes} bytes`);
  const commands = each(({ config }) => `"nats stream edit ${config.name} --max-bytes ${bytesMax} --force"`);
  throw new StartError(`STREAM_BYTES_MAX is ${bytesMax}, but ${what}: run ${commands}, or change the setting.`);
}

export function checkConsumer(stream: string, { config }: ConsumerInfo): void {
  if (!maySkip(config) && (config.inactive_threshold ?? 0) === 0) return;
  throw new StartError(
    `The consumer ${consumerName} of the stream ${stream} was changed, so it may skip frames: run ` +
      `"nats consumer rm ${stream} ${consumerName}"; it is made again, and gives every frame again.`,
  );
}

/** Refuses a stream that a copy of this installation uses from which this instance has not come. */
export function checkCopy(info: StreamInfo, copies: readonly string[]): void {
  const copy = info.config.metadata?.[copyMember] ?? '';
  if (copy === '' || copies.includes(copy)) return;
  refuseStream(
    info,
    'was taken up by another instance that was restored from a backup of this installation, and whose devices may ' +
      'have the numbers of other devices here',
    'choose another STREAM_NAME',
  );
}

export function refuseStream({ config, created }: StreamInfo, what: string, remedy: string): never {
  throw new StartError(`The stream ${config.name} (made ${String(created)}) ${what}: ${remedy}.`);
}
