/**
 * Makes the streams and their consumers, and checks that they keep the promise of `ingest.ack: stream`. What a running
 * server cannot keep is a StartError that names the reason and what to change. Called at the start of the primary, and
 * by each process after it has connected.
 */
import {
  AckPolicy,
  type ConsumerInfo,
  DeliverPolicy,
  DiscardPolicy,
  JetStreamApiError,
  RetentionPolicy,
  StorageType,
  type StreamConfig,
  type StreamInfo,
} from '@nats-io/jetstream';
import { counted } from '../base/counted.ts';
import { StartError } from '../base/errors.ts';
import { listOfSetting } from '../base/settings/list-setting.ts';
import { sizeText } from '../base/size-text.ts';
import { lanes } from '../journal/journal.ts';
import { connectReason, isLogin } from './connect-reason.ts';
import { missingSentence, missingServers } from './missing-servers.ts';
import { type KnownStream, waitingFramesOf } from './position-store.ts';
import { streamFormat } from './stream-frame.ts';
import {
  consumerNotFound,
  found,
  maySkip,
  payloadBytesMin,
  StreamLink,
  streamNameInUse,
  streamNotFound,
} from './stream-link.ts';
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
const monitorMsMax = 2_000;
const versionMin = [2, 10] as const;

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
  const { installation, isStart = false } = owner;
  checkServer(link, settings);
  await checkSync(settings, onUnchecked);
  const existing = await existingStreams(link, settings);
  for (const lane of lanes) {
    const there = existing[lane];
    checkServers(streamName(settings, lane), there, settings, owner);
    if (there) checkStream(there, [subjectOf(settings, lane, '*')], installation, settings);
  }
  // An operator may raise the limits while hosts run, so a worker that starts again takes them as they are.
  if (isStart) checkLimits(existing, settings);
  for (const lane of lanes) {
    const name = streamName(settings, lane);
    const subjects = [subjectOf(settings, lane, '*')];
    const info = existing[lane] ?? (await makeLane(name, subjects, link.formats[lane]));
    // Another host that starts at this moment may have made the stream.
    if (info !== existing[lane]) checkStream(info, subjects, installation, settings);
    link.formats[lane] = formatOf(info);
    const ack_wait = settings.redeliverSeconds * nanosPerSecond;
    const consumer =
      (await found(link.manager.consumers.info(name, consumerName), consumerNotFound)) ??
      (await link.manager.consumers.add(name, {
        durable_name: consumerName,
        deliver_policy: DeliverPolicy.All,
        ack_policy: AckPolicy.Explicit,
        ack_wait,
        max_deliver: -1,
        max_ack_pending: unconfirmedMax,
        // The servers keep in memory which frames are confirmed: in files it costs them almost as much as the frames.
        // When all of them stop at once, frames that were not removed yet are given again. Frames that wait to be given
        // as JSON are removed much later, so with them it is kept in files.
        mem_storage: !settings.json.enabled,
      }));
    checkConsumer(name, consumer);
    await takeUp(link, info, consumer, owner);
    if (consumer.config.ack_wait !== ack_wait) await link.manager.consumers.update(name, consumerName, { ack_wait });
    if (settings.json.enabled) await prepareJsonConsumer(link, name);
  }
  if (settings.json.enabled) await prepareJsonStream(link, settings, owner);

  // A stream that is made again while this process runs keeps its form: processes of an older version may read it.
  function makeLane(name: string, subjects: string[], format: number): Promise<StreamInfo> {
    // A confirmation of a frame names its number. In a server that was frozen it may arrive when the stream was made
    // again, so no number of a former stream comes again.
    const first_seq = Date.now() * 1_000;
    const limits = { discard: DiscardPolicy.New, max_bytes: settings.bytesMax, first_seq };
    return make(link, settings, owner, { name, subjects, ...limits }, format, 'STREAM_BYTES_MAX');
  }
}

/** Returns the streams of both lanes; undefined: it is not there. */
function existingStreams({ manager }: StreamLink, settings: StreamSettings): Promise<(StreamInfo | undefined)[]> {
  return Promise.all(lanes.map((lane) => found(manager.streams.info(streamName(settings, lane)), streamNotFound)));
}

/**
 * Refuses other servers than those whose stream of this name holds frames: its position would be replaced, and nothing
 * would say that the frames are there.
 */
function checkServers(
  name: string,
  there: StreamInfo | undefined,
  { url }: StreamSettings,
  { known = [] }: Pick<StreamOwner, 'known'>,
): void {
  const stream = known.find((each) => each.name === name);
  if (stream === undefined || waitingFramesOf(stream) === 0 || stream.servers === '') return;
  if (String(there?.created) === stream.created || haveOneInCommon(stream.servers, url)) return;
  throw new StartError(
    `STREAM_URL names other servers than ${stream.servers}, where the stream ${name} held ${waitingFramesOf(stream)} frames ` +
      'that ClickHouse does not have: start all hosts with those servers until millrace_stream_frames is 0 for both ' +
      `lanes, or, when they are gone for good, run "npm run stream -- forget ${name}".`,
  );
}

function haveOneInCommon(servers: string, url: string): boolean {
  const addresses = new Set(listOfSetting(url).map(addressOf));
  return listOfSetting(servers).some((server) => addresses.has(addressOf(server)));
}

function addressOf(server: string): string {
  const address = server.replace(/^(nats|tls):\/\//, '');
  return /:\d+$/.test(address) ? address : `${address}:4222`;
}

/** A member of the metadata of a stream: the restore that has taken it up; absent: none. */
const copyMember = 'millrace_copy';

/**
 * Refuses a stream whose frames may be of another copy of this installation: a backup that is restored twice gives the
 * same numbers to different devices. A restored instance takes up the stream of the instance that it replaces.
 */
async function takeUp(
  { manager }: StreamLink,
  info: StreamInfo,
  { num_waiting }: ConsumerInfo,
  { copies, isStart = false }: StreamOwner,
): Promise<void> {
  const { name, metadata = {} } = info.config;
  const own = copies?.at(-1) ?? '';
  const found = metadata[copyMember] ?? '';
  if (copies === undefined || found === own) return;
  checkCopy(info, copies);
  if (num_waiting === 0) {
    await manager.streams.update(name, { metadata: { ...metadata, [copyMember]: own } });
  } else if (isStart && found === '') {
    refuse(
      info,
      'is in use by the instance from whose backup this one was restored, and each would take frames of the other',
      'choose another STREAM_NAME, or stop that instance',
    );
  }
  // Hosts that share their stores are restored one after the other, so a stream of an earlier restore may be in use.
}

/** Refuses a stream that a copy of this installation uses from which this instance has not come. */
function checkCopy(info: StreamInfo, copies: readonly string[]): void {
  const copy = info.config.metadata?.[copyMember] ?? '';
  if (copy === '' || copies.includes(copy)) return;
  refuse(
    info,
    'was taken up by another instance that was restored from a backup of this installation, and whose devices may ' +
      'have the numbers of other devices here',
    'choose another STREAM_NAME',
  );
}

type Made = Pick<StreamConfig, 'name' | 'subjects' | 'discard' | 'max_bytes'> & Partial<StreamConfig>;

async function make(
  { manager }: StreamLink,
  { replicas }: StreamSettings,
  { installation, copies }: StreamOwner,
  config: Made,
  format: number,
  setting: string,
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
        `${error.message}. Each replica needs a node with room for it: raise max_file_store of the servers, lower ` +
        `${setting}, or set STREAM_REPLICAS to the number of nodes, at least 3.`,
    );
  }
}

/** Gives frames to the relay. Servers forget the consumer when no process has used it for a day. */
async function prepareJsonConsumer({ manager }: StreamLink, stream: string): Promise<void> {
  if (await found(manager.consumers.info(stream, jsonConsumerName), consumerNotFound)) return;
  await manager.consumers.add(stream, {
    durable_name: jsonConsumerName,
    deliver_policy: DeliverPolicy.All,
    ack_policy: AckPolicy.Explicit,
    ack_wait: jsonSecondsMax * nanosPerSecond,
    max_deliver: -1,
    max_ack_pending: jsonUnconfirmedMax,
    inactive_threshold: 86_400 * nanosPerSecond,
  });
}

/** Its limits follow the settings: unlike a lane, the stream promises to keep nothing beyond them. */
async function prepareJsonStream(link: StreamLink, settings: StreamSettings, owner: StreamOwner): Promise<void> {
  const { bytesMax: max_bytes, keptSeconds } = settings.json;
  const name = jsonStreamName(settings);
  const limits = { discard: DiscardPolicy.Old, max_bytes, max_age: keptSeconds * nanosPerSecond };
  const config = { name, subjects: [`${settings.name}.json.>`], ...limits };
  const info = await found(link.manager.streams.info(name), streamNotFound);
  if (!info) {
    await make(link, settings, owner, config, jsonFormat, 'STREAM_JSON_BYTES_MAX');
    return;
  }
  checkOwner(info, owner.installation);
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
    if (isLogin(error)) throw new StartError(`STREAM_URL: ${connectReason(error)}.`);
    return connectReason(error);
  } finally {
    await link?.close().catch(() => {});
  }
}

interface InspectedStreams {
  version: string;
  /** Why nothing is known of the sync of servers. */
  unchecked: string[];
  /** What unavailable servers of a stream mean. */
  missing: string | undefined;
}

/** Checks the servers, and the streams that are there and whose they are, without a change of them. */
export async function inspectStreams(settings: StreamSettings, owner: StreamOwner): Promise<InspectedStreams> {
  const unchecked: string[] = [];
  let missing: string | undefined;
  const link = await StreamLink.open(settings, 'millrace doctor');
  try {
    checkServer(link, settings);
    await checkSync(settings, (why) => unchecked.push(why));
    const existing = await existingStreams(link, settings);
    for (const lane of lanes) {
      const name = streamName(settings, lane);
      const info = existing[lane];
      checkServers(name, info, settings, owner);
      if (info) {
        checkStream(info, [subjectOf(settings, lane, '*')], owner.installation, settings);
        checkCopy(info, owner.copies ?? [info.config.metadata?.[copyMember] ?? '']);
      }
      const lost = missingServers(info?.cluster);
      if (lost !== undefined) missing ??= missingSentence(name, lost);
    }
    checkLimits(existing, settings);
    const json =
      settings.json.enabled && (await found(link.manager.streams.info(jsonStreamName(settings)), streamNotFound));
    if (json) checkOwner(json, owner.installation);
    return { version: link.connection.info?.version ?? 'of an unknown version', unchecked, missing };
  } finally {
    await link.close().catch(() => {});
  }
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

function checkServer({ connection, shortfall }: StreamLink, { replicas }: StreamSettings): void {
  const { info } = connection;
  const version = info?.version ?? '0';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major < versionMin[0] || (major === versionMin[0] && minor < versionMin[1])) {
    throw new StartError(
      `The NATS server ${connection.getServer()} is ${version}, which cannot sync each message before its ` +
        'acknowledgement (sync_interval: always): use version 2.10 or later.',
    );
  }
  // A server of a cluster turns JetStream off when its disk is full, and its clients reach that of the other servers.
  if (info?.jetstream !== true && info?.cluster === undefined) {
    throw new StartError(
      `The NATS server ${connection.getServer()} has no JetStream: add "jetstream" to its settings.`,
    );
  }
  if (replicas > 1 && info.cluster === undefined) {
    throw new StartError(
      `The NATS server ${connection.getServer()} is in no cluster, and STREAM_REPLICAS is ${replicas}: name the nodes of a cluster.`,
    );
  }
  if (shortfall !== undefined) throw new StartError(`STREAM_URL: ${shortfall}.`);
}

/** The servers do not tell a client when they sync; their monitoring pages do. */
async function checkSync({ monitorUrls }: StreamSettings, onUnchecked: (why: string) => void): Promise<void> {
  const pages = listOfSetting(monitorUrls).map((url) => new URL('/jsz', url));
  if (pages.length === 0) onUnchecked('the list is empty, name the monitoring pages of the servers');
  /** By the identity of their servers, because two addresses may lead to one server. */
  const checked = new Set<string>();
  let [silent, servers] = [0, 0];
  for (const page of pages) {
    let state: JetStreamPage;
    try {
      const response = await fetch(page, { signal: AbortSignal.timeout(monitorMsMax) });
      state = (await response.json()) as JetStreamPage;
    } catch {
      // A node that does not answer is checked by the next start; the others keep the promise meanwhile.
      onUnchecked(`${page.origin} does not answer`);
      silent += 1;
      continue;
    }
    servers = Math.max(servers, state.meta_cluster?.cluster_size ?? 0);
    // So is a node that has turned JetStream off, as after a full disk: it acknowledges nothing.
    if (state.disabled === true) {
      onUnchecked(`the server at ${page.origin} has JetStream off`);
      silent += 1;
    } else if (state.config?.sync_always === true) {
      checked.add(state.server_id ?? page.origin);
    } else {
      throw new StartError(
        `The NATS server at ${page.origin} does not sync each message before its acknowledgement: set ` +
          '"sync_interval: always" in the jetstream block of every server (STREAM_MONITOR_URLS).',
      );
    }
  }
  const without = servers - checked.size - silent;
  if (without > 0) onUnchecked(`${without} of ${servers} servers with JetStream have no page in the list`);
}

/** A part of the page `/jsz`. */
interface JetStreamPage {
  server_id?: string;
  config?: { sync_always?: boolean };
  disabled?: boolean;
  meta_cluster?: { cluster_size?: number };
}

function refuse({ config, created }: StreamInfo, what: string, remedy: string): never {
  throw new StartError(`The stream ${config.name} (made ${String(created)}) ${what}: ${remedy}.`);
}

function formatOf({ config }: StreamInfo): number {
  return Number(config.metadata?.['millrace_format']);
}

function checkOwner(info: StreamInfo, installation: string): void {
  const { metadata } = info.config;
  const format = formatOf(info);
  const owner = metadata?.['millrace_installation'] ?? '';
  if (!Number.isInteger(format)) {
    refuse(
      info,
      'was not made by Millrace',
      'choose another STREAM_NAME, or remove it if it took the place of a stream',
    );
  }
  if (format > streamFormat) refuse(info, 'was made by a later version', 'start that version');
  if (owner !== '' && installation !== '' && owner !== installation) {
    refuse(info, 'belongs to another installation', 'choose another STREAM_NAME');
  }
}

/** Checks that each frame is kept until it is removed. */
function checkKept(info: StreamInfo, settings: StreamSettings): void {
  const { config } = info;
  const { name } = config;
  if (config.num_replicas < settings.replicas) {
    refuse(
      info,
      `has ${counted(config.num_replicas, 'replica')} and STREAM_REPLICAS is ${settings.replicas}`,
      `run "nats stream edit ${name} --replicas ${settings.replicas}", or change the setting`,
    );
  }
  if (config.storage !== StorageType.File) refuse(info, 'is kept in memory only', 'remove it when it is empty');
  if (config.discard !== DiscardPolicy.New) {
    refuse(info, 'discards its oldest frames when it is full', `run "nats stream edit ${name} --discard new"`);
  }
  if (config.retention !== RetentionPolicy.Limits) {
    refuse(info, 'does not have the retention "limits"', 'remove it when it is empty');
  }
  if (config.max_age > 0 || config.max_msgs > 0 || config.max_msgs_per_subject > 0) {
    refuse(
      info,
      'forgets frames by their age or number',
      `run "nats stream edit ${name} --max-age 0 --max-msgs=-1 --max-msgs-per-subject=-1"`,
    );
  }
}

function checkStream(info: StreamInfo, subjects: string[], installation: string, settings: StreamSettings): void {
  const { config } = info;
  const { name } = config;
  checkOwner(info, installation);
  checkKept(info, settings);
  if (config.max_msg_size > 0 && config.max_msg_size < payloadBytesMin) {
    refuse(
      info,
      `takes messages of ${config.max_msg_size} bytes only`,
      `run "nats stream edit ${name} --max-msg-size=-1"`,
    );
  }
  if (!subjects.every((subject) => config.subjects.includes(subject))) {
    refuse(info, `does not take the subject ${subjects.join()}`, 'choose another STREAM_NAME');
  }
}

/** Names both streams at once: an operator who changes the setting needs both commands. */
function checkLimits(streams: readonly (StreamInfo | undefined)[], { bytesMax }: StreamSettings): void {
  const others = streams.filter((info) => info !== undefined && info.config.max_bytes !== bytesMax) as StreamInfo[];
  if (others.length === 0) return;
  const each = (text: (info: StreamInfo) => string) => others.map(text).join(' and ');
  const what = each(({ config }) => `the stream ${config.name} holds ${config.max_bytes} bytes`);
  const commands = each(({ config }) => `"nats stream edit ${config.name} --max-bytes ${bytesMax} --force"`);
  throw new StartError(`STREAM_BYTES_MAX is ${bytesMax}, but ${what}: run ${commands}, or change the setting.`);
}

function checkConsumer(stream: string, { config }: ConsumerInfo): void {
  if (!maySkip(config) && (config.inactive_threshold ?? 0) === 0) return;
  throw new StartError(
    `The consumer ${consumerName} of the stream ${stream} was changed, so it may skip frames: run ` +
      `"nats consumer rm ${stream} ${consumerName}"; it is made again, and gives every frame again.`,
  );
}
