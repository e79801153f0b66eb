/**
 * Counts the messages and data points that the devices of each tenant send in a calendar month (UTC), and refuses
 * messages above the quotas of the tenant's profile. Each worker counts in memory and adds its counts to PostgreSQL
 * every few seconds, which gives the worker the sums of all workers and hosts. So a tenant may exceed a quota by what
 * its devices send within one such interval. While PostgreSQL is unavailable, counts are kept and each worker goes by
 * the last sums. What a worker has counted when it is killed is lost, and what a lost connection leaves in doubt is
 * counted again.
 */
import type { LimitedProfile } from '../auth/rate-limits.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { addUsage, type UsageOfTenant } from './tenant-usage-store.ts';

interface TenantUsageDeps {
  postgres: Queries;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
}

/** What a tenant may send in a month; 0 = no limit. */
interface Quota {
  messagesMax: number;
  pointsMax: number;
  profile: string;
}

const noQuota: Quota = { messagesMax: 0, pointsMax: 0, profile: '' };

class Use {
  /** Counted here, and not in the sums. */
  messages = 0;
  points = 0;
  /** Sums of all workers. */
  messagesSum = 0;
  pointsSum = 0;
  quota = noQuota;
  /** False: the sums are older than one interval, or unknown. */
  isCurrent = false;
}

export class TenantUsage {
  /** False while no tenant has a quota. */
  isLimiting = false;
  readonly #deps: TenantUsageDeps;
  /** Tenants with a quota, and tenants whose devices sent within the interval. */
  readonly #uses = new Map<string, Use>();
  /** The tenant of the last message: most messages come from the tenant of the message before. */
  #lastTenant = '';
  #last = new Use();
  /** The month of the sums. */
  #month: Month;
  readonly #scheduler: Scheduler;
  /** Stops the timer of the next write; undefined while none is due. */
  #stopTimer: (() => void) | undefined;
  /** True when the timer runs for `tenantUsageSoonMs`. */
  #isSoon = false;
  /** True when the last write failed. */
  #hasFailed = false;
  #writing: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(deps: TenantUsageDeps) {
    this.#deps = deps;
    this.#scheduler = deps.scheduler ?? systemScheduler;
    this.#month = monthOf(deps.clock.now());
  }

  /** Limits the tenants of these profiles, and no others. */
  useProfiles(profiles: readonly LimitedProfile[]): void {
    const quotas = new Map<string, Quota>();
    for (const { name, limits: given, tenantIds } of profiles) {
      const { messagesPerMonthMax: messagesMax, pointsPerMonthMax: pointsMax } = given;
      if (messagesMax + pointsMax === 0) continue;
      for (const tenantId of tenantIds) quotas.set(tenantId, { messagesMax, pointsMax, profile: name });
    }
    for (const [tenantId, use] of this.#uses) use.quota = quotas.get(tenantId) ?? noQuota;
    for (const [tenantId, quota] of quotas) this.#useOf(tenantId).quota = quota;
    this.isLimiting = quotas.size > 0;
  }

  /** Counts a message that was accepted, with its data points. */
  add(tenantId: string, points: number): void {
    if (tenantId !== this.#lastTenant) {
      this.#last = this.#useOf(tenantId);
      this.#lastTenant = tenantId;
    }
    const use = this.#last;
    use.messages += 1;
    use.points += points;
    // A tenant with a quota whose sums are unknown has them soon.
    const isSoon = !use.isCurrent && use.quota !== noQuota && !this.#hasFailed;
    if (this.#stopTimer === undefined || (isSoon && !this.#isSoon)) this.#schedule({ isSoon });
  }

  /** Throws 429 when a quota of the tenant is used up. */
  admit(tenantId: string): void {
    if (!this.isLimiting) return;
    const use = this.#uses.get(tenantId);
    if (use === undefined || usedUp(use) === undefined) return;
    const now = this.#deps.clock.now();
    this.#rollMonth(now);
    const kind = usedUp(use);
    if (kind !== undefined) throw quotaReached(kind, use.quota, Math.ceil((this.#month.end - now) / 1000));
  }

  /** Adds what is counted to PostgreSQL, in one attempt. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#write();
  }

  #useOf(tenantId: string): Use {
    let use = this.#uses.get(tenantId);
    if (!use) this.#uses.set(tenantId, (use = new Use()));
    return use;
  }

  #schedule({ isSoon }: { isSoon: boolean }): void {
    if (this.#stopped) return;
    this.#stopTimer?.();
    this.#isSoon = isSoon;
    const waitMs = isSoon ? limits.tenantUsageSoonMs : limits.tenantUsageMs;
    this.#stopTimer = this.#scheduler.after(waitMs, () => void this.#write());
  }

  #write(): Promise<void> {
    this.#stopTimer?.();
    this.#stopTimer = undefined;
    this.#isSoon = false;
    this.#writing = this.#writing.then(() => this.#writeCounts());
    return this.#writing;
  }

  async #writeCounts(): Promise<void> {
    const { postgres, clock, log } = this.#deps;
    // What was counted since the last write counts for the month of now.
    this.#rollMonth(clock.now());
    const month = this.#month;
    const counted: UsageOfTenant[] = [];
    for (const [tenantId, use] of this.#uses) {
      const { messages, points } = use;
      if (messages > 0) counted.push({ tenantId, messages, points });
      else use.isCurrent = false;
      if (messages === 0 && use.quota === noQuota) this.#forget(tenantId);
    }
    if (counted.length === 0) return;
    try {
      const sums = new Map((await addUsage(postgres, month.day, counted)).map((sum) => [sum.tenantId, sum]));
      for (const { tenantId, messages, points } of counted) {
        const use = this.#useOf(tenantId);
        use.messages -= messages;
        use.points -= points;
        if (month !== this.#month) continue;
        use.messagesSum = sums.get(tenantId)?.messages ?? 0;
        use.pointsSum = sums.get(tenantId)?.points ?? 0;
        use.isCurrent = true;
      }
      this.#hasFailed = false;
    } catch (error) {
      this.#hasFailed = true;
      if (!isAway(error)) log.warn('tenant_usage_unwritten', { reason: messageOf(error) });
    }
    // Also for tenants that sent nothing since: the next write forgets them.
    if (this.#stopTimer === undefined) this.#schedule({ isSoon: false });
  }

  #forget(tenantId: string): void {
    this.#uses.delete(tenantId);
    if (tenantId === this.#lastTenant) this.#lastTenant = '';
  }

  /** Begins another month: the next one, or an earlier one after a clock that was ahead was set back. */
  #rollMonth(now: number): void {
    if (now >= this.#month.begin && now < this.#month.end) return;
    this.#month = monthOf(now);
    for (const use of this.#uses.values()) {
      use.messagesSum = 0;
      use.pointsSum = 0;
      use.isCurrent = false;
    }
  }
}

type Kind = 'messages' | 'points';

function usedUp({ messages, points, messagesSum, pointsSum, quota }: Use): Kind | undefined {
  const { messagesMax, pointsMax } = quota;
  if (messagesMax > 0 && messagesSum + messages >= messagesMax) return 'messages';
  if (pointsMax > 0 && pointsSum + points >= pointsMax) return 'points';
  return undefined;
}

function quotaReached(kind: Kind, { messagesMax, pointsMax, profile }: Quota, secondsLeft: number): Fault {
  const [max, noun, member] =
    kind === 'messages'
      ? [messagesMax, 'messages', 'maxTransportMessages']
      : [pointsMax, 'data points', 'maxTransportDataPoints'];
  const source = `${member} of tenant profile "${profile}"`;
  const message = `The devices of this tenant have sent their ${max} ${noun} of this month (${source}).`;
  return new Fault(`quota_${kind}`, message, Math.max(1, secondsLeft));
}

interface Month {
  /** The first day of the month, as `2026-11-01`. */
  day: string;
  /** The milliseconds at which the month begins, and at which the next one begins. */
  begin: number;
  end: number;
}

/** Returns the calendar month (UTC) of a time. */
export function monthOf(ms: number): Month {
  const date = new Date(ms);
  const [year, month] = [date.getUTCFullYear(), date.getUTCMonth()];
  const begin = Date.UTC(year, month, 1);
  return { day: new Date(begin).toISOString().slice(0, 10), begin, end: Date.UTC(year, month + 1, 1) };
}
