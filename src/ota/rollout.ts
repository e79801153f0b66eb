/**
 * Notifies devices of their packages: telemetry `QUEUED`, shared attributes and telemetry `INITIATED`, or the removal
 * of the attributes. The work is stored in PostgreSQL, so the work survives any crash, and any worker of any host can
 * do it. A batch is one transaction that locks its devices; an interrupted step is repeated from its start. A device
 * that cannot be notified now waits and delays no other device: its own attributes may have used up its share. The
 * rollout compares the last notification of a device with its packages now, so many changes in a row cost one
 * notification.
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
  /** Devices whose notification failed → monotonic time until which this worker leaves them out. */
  readonly #leftOut = new Map<string, number>();
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
    const taken = await takeRolloutDevices(queries, limits.otaRolloutBatchMax, this.#devicesLeftOut());
    if (taken.length === 0) return false;
    const outdated = await readOutdated(queries, [...new Set(taken.map(({ deviceId }) => deviceId))]);
    const outcomes = await Promise.allSettled(outdated.map((device) => this.#notify(device)));
    const failures = outcomes.flatMap((outcome, i) =>
      outcome.status === 'rejected' ? [{ id: outdated[i]!.id, reason: outcome.reason as unknown }] : [],
    );
    if (failures.length > 0) this.#leaveOut(failures, outdated.length);
    const failed = new Set(failures.map(({ id }) => id));
    const rolloutIds = taken.filter(({ deviceId }) => !failed.has(deviceId)).map(({ rolloutId }) => rolloutId);
    const done = outdated.filter(({ id }) => !failed.has(id));
    const notified = done.map(({ id, firmware, software }) => ({
      id,
      firmwareId: firmware?.id ?? null,
      softwareId: software?.id ?? null,
    }));
    await finishRolloutDevices(queries, rolloutIds, notified);
    this.#notified.add(done.length);
    return true;
  }

  /** Throws when PostgreSQL is unavailable, or when none of the `tried` devices was notified. */
  #leaveOut(failures: { id: string; reason: unknown }[], tried: number): void {
    const { clock, log } = this.#deps;
    const { reason } = failures.find((failure) => isAway(failure.reason)) ?? failures[0]!;
    if (isAway(reason)) throw reason;
    const until = clock.monotonic() + limits.otaLeftOutMs;
    for (const { id } of failures) if (this.#leftOut.size < limits.otaLeftOutMax) this.#leftOut.set(id, until);
    if (failures.length === tried) throw reason;
    log.warn('ota_rollout_failed', { devices: failures.length, reason: messageOf(reason) });
  }

  #devicesLeftOut(): string[] {
    const now = this.#deps.clock.monotonic();
    for (const [id, until] of this.#leftOut) if (until <= now) this.#leftOut.delete(id);
    return [...this.#leftOut.keys()];
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
