/**
 * Notifies devices of their packages: telemetry `QUEUED`, shared attributes and telemetry `INITIATED`, or the removal
 * of the attributes. The work is stored in PostgreSQL, so the work survives any crash, and any worker of any host can
 * do it. A batch is one transaction that locks its devices; an interrupted step is repeated from its start. The rollout
 * compares the last notification of a device with its packages now, so many changes in a row cost one notification.
 */
import type { Attributes } from '../attributes/attributes.ts';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { type OnPoll, SharedPoll } from '../postgres/shared-poll.ts';
import { attributeKeys, initiatedSeries, packageAttributes, queuedSeries } from './effects.ts';
import type { OtaPackage, PackageType } from './package.ts';
import {
  expandRolloutProfile,
  finishRolloutDevices,
  type Outdated,
  readOutdated,
  takeRolloutDevices,
} from './rollout-store.ts';
import { appendSeries, type SeriesIngest } from './series.ts';

interface RolloutDeps {
  postgres: Postgres;
  ingest: SeriesIngest;
  attributes: Pick<Attributes, 'save' | 'remove'>;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  onPoll?: OnPoll;
}

export class Rollout {
  readonly #deps: RolloutDeps;
  readonly #notified: Counter;
  readonly #poll: SharedPoll;
  #running: Promise<void> | undefined;
  #again = false;
  #stopped = false;

  constructor(deps: RolloutDeps) {
    this.#deps = deps;
    const read = async () => {
      this.wake();
      return true;
    };
    this.#poll = new SharedPoll({ kind: 'rollout', clock: deps.clock, read }, deps.onPoll);
    this.#notified = deps.metrics.counter('ota_devices_told_total', 'Devices notified of a changed package.');
  }

  /** Checks for work regularly: a crash, another host or a missed wake may have left some. */
  start(): void {
    void this.#poll.start();
  }

  /** Called when a device or a profile was saved. Returns at once. */
  readonly wake = (): void => {
    if (this.#stopped) return;
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#running = this.#work().finally(() => {
      this.#running = undefined;
      if (this.#again) {
        this.#again = false;
        this.wake();
      }
    });
  };

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#poll.stop();
    await this.#running;
  }

  async #work(): Promise<void> {
    const { postgres, log } = this.#deps;
    try {
      while (!this.#stopped) {
        this.#again = false;
        if (await postgres.transaction((queries) => this.#notifyBatch(queries))) continue;
        const { otaRolloutExpandMax } = limits;
        if (!(await postgres.transaction((queries) => expandRolloutProfile(queries, otaRolloutExpandMax)))) return;
      }
    } catch (error) {
      // The work stays stored; the timer tries it again.
      if (!isAway(error)) log.warn('ota_rollout_failed', { reason: messageOf(error) });
    }
  }

  /** Returns false when there is nothing to do, or other workers do it. */
  async #notifyBatch(queries: Queries): Promise<boolean> {
    const taken = await takeRolloutDevices(queries, limits.otaRolloutBatchMax);
    if (taken.length === 0) return false;
    const outdated = await readOutdated(queries, [...new Set(taken.map(({ deviceId }) => deviceId))]);
    const outcomes = await Promise.allSettled(outdated.map((device) => this.#notify(device)));
    for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason;
    const rolloutIds = taken.map(({ rolloutId }) => rolloutId);
    const notified = outdated.map(({ id, firmware, software }) => ({
      id,
      firmwareId: firmware?.id ?? null,
      softwareId: software?.id ?? null,
    }));
    await finishRolloutDevices(queries, rolloutIds, notified);
    this.#notified.add(outdated.length);
    return true;
  }

  async #notify(device: Outdated): Promise<void> {
    const { notifiedFirmwareId, notifiedSoftwareId, firmware, software } = device;
    await Promise.all([
      this.#notifyOf(device, 'FIRMWARE', notifiedFirmwareId, firmware),
      this.#notifyOf(device, 'SOFTWARE', notifiedSoftwareId, software),
    ]);
  }

  async #notifyOf(
    { number: device, tenantId }: Pick<Outdated, 'number' | 'tenantId'>,
    type: PackageType,
    notifiedId: string | null,
    now: OtaPackage | null,
  ): Promise<void> {
    const { attributes, clock, ingest } = this.#deps;
    if (notifiedId === (now?.id ?? null)) return;
    const scope = 'SHARED_SCOPE';
    if (now === null) {
      await attributes.remove(device, scope, attributeKeys(type), tenantId, 'server');
      return;
    }
    await appendSeries(ingest, device, queuedSeries(now, clock.now()));
    const entries = packageAttributes(now);
    if (notifiedId !== null) {
      const stale = attributeKeys(type).filter((key) => !entries.has(key));
      await attributes.remove(device, scope, stale, tenantId, 'server');
    }
    await attributes.save(device, scope, entries, tenantId, 'server');
    // Waits for the acknowledgement of the earlier state, so that the later state is sorted after it.
    await appendSeries(ingest, device, initiatedSeries(type));
  }
}
