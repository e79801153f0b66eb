/** Finds the servers of a stream that do not follow its leader, and says what their loss means. */
import type { StreamInfo } from '@nats-io/jetstream';

export interface MissingServers {
  names: string[];
  /** Further servers that may be unavailable while the stream accepts frames. Below 0, it accepts none. */
  spare: number;
}

/** A leader exchanges messages with each server every second. */
const silentNanosMax = 5_000_000_000;

/**
 * Returns the servers of a stream that do not follow its leader, as the leader reports them. A server that
 * never followed this leader is not `current`, and neither is one that is behind for a moment.
 */
export function missingServers(cluster: StreamInfo['cluster']): MissingServers | undefined {
  const replicas = cluster?.replicas ?? [];
  const isMissing = ({ current, offline, active }: (typeof replicas)[number]) =>
    !current || offline === true || active > silentNanosMax;
  const names = replicas.filter(isMissing).map(({ name }) => name);
  if (names.length === 0) return undefined;
  const servers = replicas.length + 1;
  return { names, spare: Math.ceil(servers / 2) - 1 - names.length };
}

/** Says what the loss of these servers means. */
export function missingSentence(stream: string, { names, spare }: MissingServers): string {
  const then =
    spare < 0
      ? 'it has no majority and accepts no frames'
      : `it accepts frames until ${spare + 1} more of its servers fail`;
  return `unavailable servers of the stream ${stream}: ${names.join(', ')}; ${then}`;
}
