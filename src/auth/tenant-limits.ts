/**
 * The limits that tenant profiles set, as this worker knows them. A change takes effect at once where the bus delivers
 * it, and within a second otherwise. The settings count until PostgreSQL has answered for the first time, and for
 * tenants whose profile sets no limit.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Bus } from '../bus/bus.ts';
import { JsonChannel } from '../bus/json-channel.ts';
import { isWhole } from '../bus/messages.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { type OnPoll, SharedPoll } from '../postgres/shared-poll.ts';
import { isLimiting, type ProfileLimits, readLimits } from './profile-limits.ts';
import type { LimitedProfile } from './rate-limits.ts';
import { readLimitsVersion, readProfileLimits, readTenantsOf } from './tenant-limits-store.ts';

interface TenantLimitsDeps {
  postgres: Queries;
  bus: Bus;
  clock: Clock;
  log: Log;
  onPoll?: OnPoll;
  /** Devices that a tenant may have when its profile sets no number; 0 = no limit. */
  devicesMax: number;
  /** Telemetry keys that a device may have when the profile of its tenant sets no number; 0 = no limit. */
  keysPerDeviceMax: number;
}

/** What a tenant may have; 0 = no limit. */
export type EntityLimits = Pick<ProfileLimits, 'devicesMax' | 'usersMax' | 'customersMax'>;

/** What a tenant may have and send; 0 = no limit. */
export type TenantMaxima = EntityLimits &
  Pick<ProfileLimits, 'messagesPerMonthMax' | 'pointsPerMonthMax' | 'keysPerDeviceMax'>;

interface Changed {
  version: number;
}

export class TenantLimits {
  readonly #deps: TenantLimitsDeps;
  readonly #channel: JsonChannel<Changed>;
  readonly #onProfiles: ((profiles: readonly LimitedProfile[]) => void)[] = [];
  #profiles: readonly LimitedProfile[] = [];
  #ofTenants: ReadonlyMap<string, ProfileLimits> = new Map();
  /** The version of the known limits; undefined until PostgreSQL has answered. */
  #version: number | undefined;
  #timeline: string | null | undefined;
  /** One read after the other: the limits that are read last are the newest. */
  #reading = Promise.resolve(true);
  readonly #poll: SharedPoll;
  #stopped = false;

  constructor(deps: TenantLimitsDeps) {
    this.#deps = deps;
    const isContent = (value: object): value is Changed => 'version' in value && isWhole(value.version);
    this.#channel = new JsonChannel({
      bus: deps.bus,
      channel: 'tenant-limits',
      isContent,
      onMessage: () => void this.#read(),
    });
    const { clock, onPoll } = deps;
    this.#poll = new SharedPoll({ kind: 'tenantLimits', clock, read: () => this.#read() }, onPoll);
  }

  /** Calls `use` at each change, and at once with what is known. */
  onProfiles(use: (profiles: readonly LimitedProfile[]) => void): void {
    this.#onProfiles.push(use);
    use(this.#profiles);
  }

  async start(): Promise<void> {
    await this.#channel.start();
    await this.#poll.start();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#channel.stop();
    await this.#poll.stop();
    await this.#reading;
  }

  of(tenantId: string): TenantMaxima {
    const { devicesMax, keysPerDeviceMax } = this.#deps;
    const given = this.#ofTenants.get(tenantId);
    return {
      devicesMax: given?.devicesMax || devicesMax,
      usersMax: given?.usersMax ?? 0,
      customersMax: given?.customersMax ?? 0,
      messagesPerMonthMax: given?.messagesPerMonthMax ?? 0,
      pointsPerMonthMax: given?.pointsPerMonthMax ?? 0,
      keysPerDeviceMax: given?.keysPerDeviceMax || keysPerDeviceMax,
    };
  }

  /** Called after the commit of a change: this worker knows the new limits when the promise resolves. */
  async changed(): Promise<void> {
    await this.#read();
    this.#channel.publish({ version: this.#version ?? 0 });
  }

  /** Returns false when the store did not answer. */
  #read(): Promise<boolean> {
    this.#reading = this.#reading.then(() => this.#readChanged());
    return this.#reading;
  }

  /** Reads the version first: a change during the read has a higher version, so the next read sees it. */
  async #readChanged(): Promise<boolean> {
    const { postgres, log } = this.#deps;
    if (this.#stopped) return true;
    try {
      const { version, timeline } = await readLimitsVersion(postgres);
      if (version === this.#version && timeline === this.#timeline) return true;
      const limited = (await readProfileLimits(postgres))
        .map(({ id, name, configuration }) => ({
          id,
          name,
          limits: readLimits(configuration),
          tenantIds: [] as string[],
        }))
        .filter(({ limits: given }) => isLimiting(given));
      const byId = new Map(limited.map((profile) => [profile.id, profile]));
      for (const tenant of await readTenantsOf(postgres, [...byId.keys()])) {
        byId.get(tenant.profileId)?.tenantIds.push(tenant.id);
      }
      this.#ofTenants = new Map(limited.flatMap((profile) => profile.tenantIds.map((id) => [id, profile.limits])));
      this.#profiles = limited;
      for (const use of this.#onProfiles) use(limited);
      [this.#version, this.#timeline] = [version, timeline];
      return true;
    } catch (error) {
      if (!isAway(error)) log.warn('tenant_limits_unread', { reason: messageOf(error) });
      return false;
    }
  }
}
