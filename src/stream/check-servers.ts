/**
 * Checks the servers of the streams: what they are, that they sync each message, and that they are those whose streams
 * hold frames. What a server cannot keep is a StartError that names the reason and what to change.
 */
import type { StreamInfo } from '@nats-io/jetstream';
import { StartError } from '../base/errors.ts';
import { listOfSetting } from '../base/settings/list-setting.ts';
import { type KnownStream, waitingFramesOf } from './position-store.ts';
import type { StreamLink } from './stream-link.ts';
import type { StreamSettings } from './stream-names.ts';

const monitorMsMax = 2_000;
const versionMin = [2, 10] as const;

export function checkServer({ connection, shortfall }: StreamLink, { replicas }: StreamSettings): void {
  const { info } = connection;
  const version = info?.version ?? '0';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major < versionMin[0] || (major === versionMin[0] && minor < versionMin[1])) {
    throw new StartError(
      `The NATS server ${connection.getServer()} is ${version}, which cannot sync each message before its ` +
        'acknowledgement (sync_interval: always): use version 2.10 or later.',
    );
  }
  // A server of a cluster turns JetStream off when its disk is full. Its clients then use JetStream of other servers.
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

/** Reads the monitoring pages of the servers: clients cannot ask a server when it syncs. */
export async function checkSync({ monitorUrls }: StreamSettings, onUnchecked: (why: string) => void): Promise<void> {
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
      // The next start checks a server that does not answer. The other servers keep the promise meanwhile.
      onUnchecked(`${page.origin} does not answer`);
      silent += 1;
      continue;
    }
    servers = Math.max(servers, state.meta_cluster?.cluster_size ?? 0);
    // A server that has turned JetStream off, as after a full disk, acknowledges nothing. The next start checks it too.
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

/**
 * Refuses other servers than those whose stream of this name holds frames: its position would be replaced, and nothing
 * would say that the frames are there.
 */
export function checkServers(
  name: string,
  there: StreamInfo | undefined,
  { url }: StreamSettings,
  known: readonly KnownStream[] = [],
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
