/** Rate limits that limit nothing, for objects that are tested alone. */
import type { RateLimitSettings } from '../../src/auth/rate-kinds.ts';
import { RateLimits } from '../../src/auth/rate-limits.ts';
import { deafBus } from './deaf-bus.ts';

const noRates = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
const unlimited: RateLimitSettings = {
  device: noRates,
  gatewayDevice: noRates,
  gateway: noRates,
  tenant: noRates,
};

export function unlimitedRates(): RateLimits {
  return new RateLimits({ settings: unlimited, bus: deafBus, clock: { now: () => 0, monotonic: () => 0 } });
}
