/**
 * One worker: opens its sections in the order in which data flows, listens, and stops them in the reverse order. Read
 * this file first: `worker/` has a file for each section, which names its long-lived objects with their collaborators.
 */
import { Proxies } from './auth/transport.ts';
import { Bug, messageOf } from './base/errors.ts';
import { limits } from './base/limits.ts';
import { createLog, type Log } from './base/log.ts';
import { Metrics } from './base/metrics/metrics.ts';
import { processMetrics } from './base/metrics/process-metrics.ts';
import { suspects, workKey } from './base/running-work.ts';
import { clockFault } from './instance/clock/clock-offset.ts';
import { Started } from './instance/lifecycle/started.ts';
import { StopSteps } from './instance/lifecycle/stop-steps.ts';
import { PrimaryLink } from './instance/processes/primary-link.ts';
import { refuseServerTimes } from './telemetry/rows.ts';
import { openChannel } from './worker/channel.ts';
import { openCommands } from './worker/commands.ts';
import { openDeviceState } from './worker/device-state.ts';
import { openDoors, openServers } from './worker/doors.ts';
import { openIdentity } from './worker/identity.ts';
import { openOnboarding } from './worker/onboarding.ts';
import { workerStatus } from './worker/status.ts';
import { openStoresAndBus } from './worker/stores.ts';
import type { WorkerDeps } from './worker/worker-deps.ts';

export async function runWorker(): Promise<void> {
  const link = new PrimaryLink();
  try {
    await serve(link);
  } catch (error) {
    // The primary shows the reason to the operator: this worker ends alone.
    await link.failed(error instanceof Error ? error : new Error(messageOf(error)));
    throw error;
  }
}

async function serve(link: PrimaryLink): Promise<void> {
  const begin = await link.begin;
  const { config } = begin;
  const log = createLog(config.log.level, `worker-${begin.slot}`);
  const metrics = new Metrics();
  processMetrics(metrics, `worker-${begin.slot}`);
  process.on('uncaughtException', (thrown: unknown) => endByBug(thrown, link, log));
  link.onClock((state) => refuseServerTimes(clockFault(state)));

  const proxies = Proxies.of(config);
  const fleetWorkers = () => link.state.fleetWorkers;
  const deps: WorkerDeps = { link, begin, config, log, metrics, started: new Started(), proxies, fleetWorkers };
  const stop = { shipMsMax: Number.POSITIVE_INFINITY };
  // Acknowledgements are sent until the channel is closed, so the sockets close last of all.
  const servers = openServers(deps);
  const stores = await openStoresAndBus(deps);
  const identity = await openIdentity(deps, stores);
  const channel = await openChannel(deps, stores, identity, stop);
  const state = await openDeviceState(deps, stores, identity, channel);
  const commands = openCommands(deps, stores, state);
  const onboarding = await openOnboarding(deps, stores, identity, state, commands);
  const doors = await openDoors(deps, servers, {
    ...stores,
    ...identity,
    ...channel,
    ...state,
    ...commands,
    ...onboarding,
  });

  link.onCollect(() => metrics.snapshot());
  link.reportStatus(() => workerStatus(deps, channel, stores.bus, doors));
  link.ready();

  let isEnding = false;
  const end = async () => {
    // The primary may end during the stop that it asked for, and the next start ends a worker that is left.
    if (isEnding) return;
    isEnding = true;
    const steps = new StopSteps({ msMax: config.shutdown.drainMsMax, log });
    await deps.started.stop(steps);
    if (steps.waits !== '') log.info('stop_waited', { seconds: Number(steps.seconds.toFixed(1)), for: steps.waits });
    process.exit(0);
  };
  link.onDrain(() => void end());
  // Without a primary no process supervises this worker: it makes accepted messages durable and leaves the rest to the
  // next run.
  link.onLost(() => {
    stop.shipMsMax = 0;
    void end();
  });
}

const bugExitCode = 70;

/**
 * Names what the bug says of itself, else the requests and connections that were carried out when the bug showed, and
 * ends the process.
 */
function endByBug(thrown: unknown, link: PrimaryLink, log: Log): void {
  const error = thrown instanceof Error ? thrown : new Error(messageOf(thrown));
  const work = error instanceof Bug && error.work ? [error.work] : suspects(limits.suspectsMax);
  log.error('bug', { suspects: work.map(workKey), reason: error.message });
  process.stderr.write(`${error.stack}\n`);
  link.died(error, work);
  process.exit(bugExitCode);
}
