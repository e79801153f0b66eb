/**
 * The pace of a host whose inserts are joined by the relay (`clickhouse/inserts/relay.ts`). All hosts insert into the
 * same tables, so the pace is slower with more hosts.
 */

/** Two inserts a second into a table, over all hosts. */
const msPerHost = 500;
/** While senders wait for inserts: 25 a second. */
const waitedForMsPerHost = 40;

interface HostPace {
  /** Live hosts. */
  hosts: number;
  /** True: senders wait until their rows are stored. */
  callersWait: boolean;
  intervalMsMax: number;
}

/** Returns the least milliseconds between two inserts of this host into a table. */
export function hostPaceMs({ hosts, callersWait, intervalMsMax }: HostPace): number {
  return Math.min(intervalMsMax, hosts * (callersWait ? waitedForMsPerHost : msPerHost));
}
