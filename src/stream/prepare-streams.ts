/**
 * Makes the streams and their consumers where they are missing, after the checks of `check-servers.ts` and
 * `check-streams.ts`. Called at the start of the primary, and by each process after it has connected.
 */
import {
  AckPolicy,
  type ConsumerConfig,
  type ConsumerInfo,
  DeliverPolicy,
  DiscardPolicy,
  JetStreamApiError,
  RetentionPolicy,
  StorageType,
  type StreamConfig,
  type StreamInfo,
} from '@nats-io/jetstream';
import { StartError } from '../base/errors.ts';
import { sizeText } from '../base/size-text.ts';
import { type Lane, lanes } from '../journal/journal.ts';
import { checkRights } from './check-rights.ts';
import { checkServer, checkServers, checkSync } from './check-servers.ts';
import {
  checkConsumer,
  checkCopy,
  checkStream,
  checkStreamLimits,
  checkStreamOwner,
  copyMember,
  existingStreams,
  formatOfStream,
  refuseStream,
} from './check-streams.ts';
import { connectReason, isLogin, violationIn } from './connect-reason.ts';
import type { KnownStream } from './position-store.ts';
import { consumerLimits, consumerNotFound, found, StreamLink, streamNameInUse, streamNotFound } from './stream-link.ts';
import {
  consumerName,
  jsonConsumerName,
  jsonStreamName,
  type StreamSettings,
  streamName,
  subjectOf,
} from './stream-names.ts';

/** Frames of one lane that all processes together may hold unconfirmed. */
const unconfirmedMax = 100_000;
const nanosPerSecond = 1_000_000_000;
/** Frames that all processes together may be giving as JSON, and the time after which such a frame is given again. */
const jsonUnconfirmedMax = 1_000;
const jsonSecondsMax = 30;
/** The form of the JSON. */
const jsonFormat = 1;

/** Whose streams may be used. */
export interface StreamOwner {
  /** The id of the installation; empty while it is not known. */
  installation: string;
  /** The restores from which this instance has come, the latest one last; undefined while that is not known. */
  copies: readonly string[] | undefined;
  /** The streams that hosts of this installation have used; undefined while they are not known. */
  known?: readonly KnownStream[] | undefined;
  /** True: nothing of this host uses the streams yet. */
  isStart?: boolean;
}

/**
 * Creates the streams and their consumers where they are missing, and refuses settings and streams that cannot keep the
 * promise. `onUnchecked`: called with the reason why nothing is known of the sync of a server.
 */
export async function prepareStreams(
  link: StreamLink,
  settings: StreamSettings,
  owner: StreamOwner,
  onUnchecked: (why: string) => void = () => {},
): Promise<void> {
  checkServer(link, settings);
  await checkSync(settings, onUnchecked);
  const existing = await existingStreams(link, settings);
  // Both lanes are checked before a stream is made.
  for (const lane of lanes) checkExisting(lane, existing[lane], settings, owner);
  // An operator may raise the limits while hosts run, so a worker that starts again takes them as they are.
  if (owner.isStart) checkStreamLimits(existing, settings);
  for (const lane of lanes) await prepareLane(link, settings, owner, lane, existing[lane]);
  await checkRights(link, settings);
  if (settings.json.enabled) await prepareJsonStream(link, settings, owner);
}

function checkExisting(
  lane: Lane,
  there: StreamInfo | undefined,
  settings: StreamSettings,
  { installation, known }: StreamOwner,
): void {
  checkServers(streamName(settings, lane), there, settings, known);
  if (there) checkStream(there, [subjectOf(settings, lane, '*')], installation, settings);
}

async function prepareLane(
  link: StreamLink,
  settings: StreamSettings,
  owner: StreamOwner,
  lane: Lane,
  there: StreamInfo | undefined,
): Promise<void> {
  const name = streamName(settings, lane);
  const info = there ?? (await makeLane(link, settings, owner, lane));
  link.formats[lane] = formatOfStream(info);
  const ack_wait = settings.redeliverSeconds * nanosPerSecond;
  const consumer =
    (await found(link.manager.consumers.info(name, consumerName), consumerNotFound)) ??
    (await makeConsumer(link, settings, name, ack_wait));
  checkConsumer(name, consumer);
  await takeUp(link, info, owner);
  if (consumer.config.ack_wait !== ack_wait) await link.manager.consumers.update(name, consumerName, { ack_wait });
  if (settings.json.enabled) await prepareJsonConsumer(link, name);
}

async function makeLane(
  link: StreamLink,
  settings: StreamSettings,
  owner: StreamOwner,
  lane: Lane,
): Promise<StreamInfo> {
  const subjects = [subjectOf(settings, lane, '*')];
  const info = await makeStream(link, settings, owner, {
    setting: 'STREAM_BYTES_MAX',
    // A stream that is made again while this process runs keeps its form: processes of an older version may read it.
    format: link.formats[lane],
    config: {
      name: streamName(settings, lane),
      subjects,
      discard: DiscardPolicy.New,
      max_bytes: settings.bytesMax,
      // A confirmation of a frame names its number. In a server that was frozen it may arrive when the stream was made
      // again, so no number of a former stream comes again.
      first_seq: Date.now() * 1_000,
    },
  });
  // Another host that starts at this moment may have made the stream.
  checkStream(info, subjects, owner.installation, settings);
  return info;
}

function makeConsumer(
  link: StreamLink,
  { json }: StreamSettings,
  stream: string,
  ack_wait: number,
): Promise<ConsumerInfo> {
  return addConsumer(link, stream, {
    durable_name: consumerName,
    deliver_policy: DeliverPolicy.All,
    ack_policy: AckPolicy.Explicit,
    ack_wait,
    max_deliver: -1,
    max_ack_pending: unconfirmedMax,
    // The servers keep in memory which frames are confirmed: in files it costs them almost as much as the frames. When
    // all of them stop at once, frames that were not removed yet are given again. Frames that wait to be given as JSON
    // are removed much later, so a consumer of such frames is kept in files.
    mem_storage: !json.enabled,
  });
}

/** Limits of the servers, or of the account, are a StartError. */
async function addConsumer(
  { manager }: StreamLink,
  stream: string,
  config: Partial<ConsumerConfig> & { durable_name: string },
): Promise<ConsumerInfo> {
  try {
    return await manager.consumers.add(stream, config);
  } catch (error) {
    if (!(error instanceof JetStreamApiError) || !consumerLimits.has(error.code)) throw error;
    throw new StartError(
      `The consumer ${config.durable_name} of the stream ${stream} cannot be made: ${error.message}. Raise the limits of ` +
        `the account and of the servers: max_ack_pending to ${config.max_ack_pending}, max_consumers to 2 or more.`,
    );
  }
}

/**
 * Refuses a stream whose frames may be of another copy of this installation: a backup that is restored twice gives the
 * same numbers to different devices. A restored instance takes up the stream of the instance that it replaces.
 */
async function takeUp(link: StreamLink, info: StreamInfo, { copies, isStart = false }: StreamOwner): Promise<void> {
  const { name, metadata = {} } = info.config;
  const own = copies?.at(-1) ?? '';
  const copy = metadata[copyMember] ?? '';
  if (copies === undefined || copy === own) return;
  checkCopy(info, copies);
  const { num_waiting } = await link.consumerInfo(name);
  if (num_waiting === 0) {
    await link.manager.streams.update(name, { metadata: { ...metadata, [copyMember]: own } });
  } else if (isStart && copy === '') {
    refuseStream(
      info,
      'is in use by the instance from whose backup this one was restored, and each would take frames of the other',
      'choose another STREAM_NAME, or stop that instance',
    );
  }
  // Hosts that share their stores are restored one after the other, so a stream of an earlier restore may be in use.
}

interface NewStream {
  config: Pick<StreamConfig, 'name' | 'subjects' | 'discard' | 'max_bytes'> & Partial<StreamConfig>;
  /** The form of its messages. */
  format: number;
  /** The setting of its size. */
  setting: string;
}

async function makeStream(
  { manager }: StreamLink,
  { replicas }: StreamSettings,
  { installation, copies }: StreamOwner,
  { config, format, setting }: NewStream,
): Promise<StreamInfo> {
  try {
    return await manager.streams.add({
      ...config,
      storage: StorageType.File,
      retention: RetentionPolicy.Limits,
      num_replicas: replicas,
      duplicate_window: nanosPerSecond,
      metadata: {
        millrace_format: String(format),
        millrace_installation: installation,
        ...(copies && copies.length > 0 && { [copyMember]: copies.at(-1)! }),
      },
    });
  } catch (error) {
    if (!(error instanceof JetStreamApiError)) throw error;
    // Another host that starts at this moment has made the stream.
    if (error.code === streamNameInUse) return await manager.streams.info(config.name);
    throw new StartError(
      `The stream ${config.name} with ${replicas} replicas of ${sizeText(config.max_bytes)} cannot be made: ` +
        `${error.message}. Each replica needs a node with room for it: raise max_file_store of the servers, or the ` +
        `limits of the account (max_file, max_streams, disk_max_stream_bytes), lower ${setting}, or set STREAM_REPLICAS to the number of nodes, at least 3.`,
    );
  }
}

/** Gives frames to the relay. Servers forget the consumer when no process has used it for a day. */
async function prepareJsonConsumer(link: StreamLink, stream: string): Promise<void> {
  if (await found(link.manager.consumers.info(stream, jsonConsumerName), consumerNotFound)) return;
  await addConsumer(link, stream, {
    durable_name: jsonConsumerName,
    deliver_policy: DeliverPolicy.All,
    ack_policy: AckPolicy.Explicit,
    ack_wait: jsonSecondsMax * nanosPerSecond,
    max_deliver: -1,
    max_ack_pending: jsonUnconfirmedMax,
    inactive_threshold: 86_400 * nanosPerSecond,
  });
}

/**
 * Makes the stream of JSON, or gives its limits the values of the settings: unlike a lane, this stream promises to keep
 * nothing beyond them.
 */
async function prepareJsonStream(link: StreamLink, settings: StreamSettings, owner: StreamOwner): Promise<void> {
  const { bytesMax: max_bytes, keptSeconds } = settings.json;
  const name = jsonStreamName(settings);
  const limits = { discard: DiscardPolicy.Old, max_bytes, max_age: keptSeconds * nanosPerSecond };
  const config = { name, subjects: [`${settings.name}.json.>`], ...limits };
  const info = await found(link.manager.streams.info(name), streamNotFound);
  if (!info) {
    await makeStream(link, settings, owner, { config, format: jsonFormat, setting: 'STREAM_JSON_BYTES_MAX' });
    return;
  }
  checkStreamOwner(info, owner.installation);
  const { discard, max_age, max_bytes: bytes } = info.config;
  if (discard !== limits.discard || max_age !== limits.max_age || bytes !== max_bytes) {
    await link.manager.streams.update(name, limits);
  }
}

/** Tries once, with a connection of its own. Returns why no server answers; undefined when the streams are usable. */
export async function tryStreams(
  settings: StreamSettings,
  owner: StreamOwner,
  onUnchecked?: (why: string) => void,
): Promise<string | undefined> {
  let link: StreamLink | undefined;
  try {
    link = await StreamLink.open(settings, 'millrace start');
    await prepareStreams(link, settings, { ...owner, isStart: true }, onUnchecked);
    return undefined;
  } catch (error) {
    if (error instanceof StartError) throw error;
    if (isLogin(error) || violationIn(error)) throw new StartError(`STREAM_URL: ${connectReason(error)}.`);
    return connectReason(error);
  } finally {
    await link?.close().catch(() => {});
  }
}
