/**
 * The pace of a host whose inserts are joined by the relay (`clickhouse/inserts/relay.ts`). All hosts insert into the
 * same tables, so the pace is slower with more hosts, and while a table has so many parts that ClickHouse may soon
 * delay or refuse inserts. Each shard has a pace of its own. Rows of 8 MiB are inserted at once at any pace.
 */

/** Two inserts a second into a table, over all hosts. */
const msPerHost = 500;
/** While senders wait for inserts: 25 a second. */
const waitedForMsPerHost = 40;

/** A partition has no more parts than this while merges keep up; ClickHouse delays inserts from 1 000 on. */
const partsUsual = 300;
const slowestFactor = 8;
/** An insert that waits for its pace must end before the shard counts as unanswering (`shard-inserter.ts`). */
const slowedMsMax = 15_000;

interface HostPace {
  /** Live hosts. */
  hosts: number;
  /** True: senders wait until their rows are stored. */
  callersWait: boolean;
  intervalMsMax: number;
  /** Parts of the partition that has most. */
  partsOfPartition: number;
}

/** Returns the least milliseconds between two inserts of this host into a table. */
export function hostPaceMs({ hosts, callersWait, intervalMsMax, partsOfPartition }: HostPace): number {
  const usualMs = Math.min(intervalMsMax, hosts * (callersWait ? waitedForMsPerHost : msPerHost));
  const slowedMs = usualMs * Math.min(slowestFactor, Math.max(1, partsOfPartition / partsUsual));
  return Math.max(usualMs, Math.min(slowedMsMax, slowedMs));
}
