/** Limits that limit nothing, for objects that are tested alone. */
import { Admission } from '../../src/activity/admission.ts';
import { TenantUsage } from '../../src/activity/tenant-usage.ts';
import type { RateLimitSettings } from '../../src/auth/rate-kinds.ts';
import { RateLimits } from '../../src/auth/rate-limits.ts';
import { DeviceKeys } from '../../src/telemetry/device-keys.ts';
import { aloneExchange } from './exchange.ts';
import { silentLog as log } from './silent-log.ts';

const noRates = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
const unlimited: RateLimitSettings = {
  device: noRates,
  gatewayDevice: noRates,
  gateway: noRates,
  tenant: noRates,
};

const clock = { now: () => 0, monotonic: () => 0 };

export function unlimitedRates(): RateLimits {
  return new RateLimits({ settings: unlimited, exchange: aloneExchange(), clock });
}

/** Counts in memory only. */
export function unlimitedAdmission(): Admission {
  const postgres = { query: async () => [] };
  return new Admission({
    rateLimits: unlimitedRates(),
    usage: new TenantUsage({ postgres, clock, log }),
    deviceKeys: new DeviceKeys({ keysMax: 0, readKeys: async () => [], clock }),
    touch() {},
  });
}
