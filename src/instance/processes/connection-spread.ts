/**
 * Spreads new MQTT connections over the workers of this host. The workers share one listening socket, and the first
 * one that accepts has the connection, mostly the worker that runs at that moment: of 200 clients that connected one
 * after the other a worker of four took 123 and another one 9. A gateway stays for months, with all its load.
 */

/** Connections by which a worker may exceed another one and not have clearly more. */
const slack = 4;
/** `slack` as a part of the connections, so that in a storm all workers accept. */
const slackShare = 0.1;
/** Age of a report after which a worker may be frozen: it accepts nothing, and the others must. */
const reportMsMax = 1_000;

/** What the primary knows of a worker. */
export interface AcceptingWorker {
  mqttConnections: number;
  /** True while the worker has no room for another connection, whatever number it has. */
  isFull: boolean;
  /** Monotonic time of the report. */
  reportedAt: number;
  /** False from the moment at which the worker is to leave connections to the others, until it listens again. */
  accepts: boolean;
  /** True while the worker is to leave connections to the others. */
  isAhead: boolean;
}

/** Returns the largest number of connections that is not clearly more than `connections`. */
export function slightlyMore(connections: number): number {
  return connections * (1 + slackShare) + slack;
}

/**
 * Returns the workers that are to leave new connections to the others, or to accept them again. A full worker takes
 * none, so the others leave no connection to it, however few it has: its HTTP connections use files, too. The
 * listening socket ends when no worker listens, and then all connections that it holds end with it. So a worker leaves
 * only when two others listen, or the only other one does. When that one of two workers is killed, connections are
 * refused for the milliseconds until the first one listens again.
 */
export function changesOf<T extends AcceptingWorker>(workers: readonly T[], now: number): T[] {
  const living = workers.filter(({ isFull, reportedAt }) => !isFull && now - reportedAt <= reportMsMax);
  const mean = living.reduce((sum, { mqttConnections }) => sum + mqttConnections, 0) / living.length;
  const isAhead = ({ mqttConnections }: T) => living.length > 1 && mqttConnections > slightlyMore(mean);
  const returning = workers.filter((worker) => worker.isAhead && !isAhead(worker));
  const listening = living.filter(({ accepts }) => accepts);
  const leaving = listening.filter(isAhead).sort((a, b) => b.mqttConnections - a.mqttConnections);
  return [...returning, ...leaving.slice(0, Math.max(0, listening.length - Math.min(2, living.length - 1)))];
}
