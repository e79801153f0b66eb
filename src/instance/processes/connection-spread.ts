/**
 * Spreads new MQTT connections over the workers of this host. The workers share one listening socket, and the first
 * one that accepts has the connection, mostly the worker that runs at that moment: of 200 clients that connected one
 * after the other a worker of four took 123 and another one 9. A gateway stays for months, with all its load.
 */

/** Connections that are not clearly more. */
const slack = 4;
/** The same as a part, so that in a storm all workers accept. */
const slackShare = 0.1;
/** Age of a report after which a worker may be frozen: it accepts nothing, and the others must. */
const reportMsMax = 1_000;

interface ReportedConnections {
  mqttConnections: number;
  /** Monotonic time of the report. */
  reportedAt: number;
}

/** Returns the largest number of connections that is not clearly more than `connections`. */
export function slightlyMore(connections: number): number {
  return connections * (1 + slackShare) + slack;
}

/**
 * Returns the number of connections above which a worker leaves new ones to the others. The worker with the fewest
 * connections is never above it, so there is always a worker that accepts.
 */
export function connectionsMost(workers: readonly ReportedConnections[], now: number): number {
  const living = workers.filter(({ reportedAt }) => now - reportedAt <= reportMsMax);
  if (living.length < 2) return Number.POSITIVE_INFINITY;
  return slightlyMore(living.reduce((sum, { mqttConnections }) => sum + mqttConnections, 0) / living.length);
}
