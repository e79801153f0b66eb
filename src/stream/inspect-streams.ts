/** Checks the servers and the streams for the command doctor, without a change of them. */
import { lanes } from '../journal/journal.ts';
import { checkRights } from './check-rights.ts';
import { checkServer, checkServers, checkSync } from './check-servers.ts';
import {
  checkCopy,
  checkStream,
  checkStreamLimits,
  checkStreamOwner,
  copyMember,
  existingStreams,
} from './check-streams.ts';
import { missingSentence, missingServers } from './missing-servers.ts';
import type { StreamOwner } from './prepare-streams.ts';
import { found, StreamLink, streamNotFound } from './stream-link.ts';
import { jsonStreamName, type StreamSettings, streamName, subjectOf } from './stream-names.ts';

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
      checkServers(name, info, settings, owner.known);
      if (info) {
        checkStream(info, [subjectOf(settings, lane, '*')], owner.installation, settings);
        checkCopy(info, owner.copies ?? [info.config.metadata?.[copyMember] ?? '']);
      }
      const lost = missingServers(info?.cluster);
      if (lost !== undefined) missing ??= missingSentence(name, lost);
    }
    checkStreamLimits(existing, settings);
    await checkRights(link, settings);
    const json =
      settings.json.enabled && (await found(link.manager.streams.info(jsonStreamName(settings)), streamNotFound));
    if (json) checkStreamOwner(json, owner.installation);
    return { version: link.connection.info?.version ?? 'of an unknown version', unchecked, missing };
  } finally {
    await link.close().catch(() => {});
  }
}
