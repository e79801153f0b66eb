/**
 * The limits that a tenant profile sets: members of `profileData.configuration`, with the names of ThingsBoard's REST
 * interface. An absent member, 0 and an empty string set no limit, so the setting of the installation counts.
 */
import { limits } from '../base/limits.ts';
import {
  type Counted,
  kinds,
  type RateLimitSettings,
  type RequestRates,
  type ScopeName,
  scopeNames,
} from './rate-kinds.ts';
import { readBuckets } from './token-buckets.ts';

export interface ProfileLimits {
  /** 0 = no limit, here and below. */
  devicesMax: number;
  usersMax: number;
  customersMax: number;
  telemetryTtlDays: number;
  messagesPerMonthMax: number;
  pointsPerMonthMax: number;
  keysPerDeviceMax: number;
  rates: RateLimitSettings;
  requests: RequestRates;
}

const counts = {
  devicesMax: 'maxDevices',
  usersMax: 'maxUsers',
  customersMax: 'maxCustomers',
  telemetryTtlDays: 'defaultStorageTtlDays',
  messagesPerMonthMax: 'maxTransportMessages',
  pointsPerMonthMax: 'maxTransportDataPoints',
  // ThingsBoard has no such limit.
  keysPerDeviceMax: 'maxTelemetryKeysPerDevice',
} as const;
type Count = keyof typeof counts;

const requests = {
  tenant: 'tenantServerRestLimitsConfiguration',
  customer: 'customerServerRestLimitsConfiguration',
  // ThingsBoard has no such limit.
  commands: 'serverSideRpcRateLimit',
} as const;

const scopeWords: Record<ScopeName, string> = {
  tenant: 'Tenant',
  device: 'Device',
  gateway: 'Gateway',
  gatewayDevice: 'GatewayDevice',
};

const kindWords: Record<Counted, string> = {
  messages: 'Msg',
  telemetryMessages: 'TelemetryMsg',
  telemetryDataPoints: 'TelemetryDataPoints',
};

/** Returns the member of a configuration that limits these messages, as `transportDeviceTelemetryMsgRateLimit`. */
export function rateMember(scope: ScopeName, kind: Counted): string {
  return `transport${scopeWords[scope]}${kindWords[kind]}RateLimit`;
}

/** Returns the first fault of a configuration, as a sentence; undefined when there is none. */
export function configurationFault(configuration: Readonly<Record<string, unknown>>): string | undefined {
  for (const [count, member] of Object.entries(counts)) {
    const value = configuration[member] ?? 0;
    const max = count === 'telemetryTtlDays' ? limits.telemetryTtlDaysMax : Number.MAX_SAFE_INTEGER;
    if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > max) {
      return `${member} must be a whole number from 0 to ${max}; 0 sets no limit`;
    }
  }
  const rates = scopeNames.flatMap((scope) => kinds.map((kind) => rateMember(scope, kind)));
  for (const member of [...rates, ...Object.values(requests)]) {
    const value = configuration[member] ?? '';
    if (typeof value !== 'string' || value.length > limits.rateLimitCharsMax || readBuckets(0, value) === undefined) {
      const example = '100:1,3000:60 (at most 100 in 1 second and 3000 in 60 seconds)';
      return `${member} must be empty or like ${example}`;
    }
  }
  return undefined;
}

/** Reads a stored configuration. A member that is malformed sets no limit: `configurationFault` refused it before. */
export function readLimits(configuration: unknown): ProfileLimits {
  const given: Readonly<Record<string, unknown>> =
    typeof configuration === 'object' && configuration !== null ? { ...configuration } : {};
  const count = (name: Count) => {
    const value = given[counts[name]];
    return typeof value === 'number' && Number.isInteger(value) && value > 0 ? value : 0;
  };
  const rate = (member: string) => {
    const value = given[member];
    return typeof value === 'string' && readBuckets(0, value) !== undefined ? value : '';
  };
  const ratesOf = (scope: ScopeName) =>
    Object.fromEntries(kinds.map((kind) => [kind, rate(rateMember(scope, kind))])) as Record<Counted, string>;
  return {
    devicesMax: count('devicesMax'),
    usersMax: count('usersMax'),
    customersMax: count('customersMax'),
    telemetryTtlDays: count('telemetryTtlDays'),
    messagesPerMonthMax: count('messagesPerMonthMax'),
    pointsPerMonthMax: count('pointsPerMonthMax'),
    keysPerDeviceMax: count('keysPerDeviceMax'),
    rates: {
      tenant: ratesOf('tenant'),
      device: ratesOf('device'),
      gateway: ratesOf('gateway'),
      gatewayDevice: ratesOf('gatewayDevice'),
    },
    requests: {
      tenant: rate(requests.tenant),
      customer: rate(requests.customer),
      commands: rate(requests.commands),
    },
  };
}

/** True when a tenant with these limits is limited at once: days of telemetry are read where they count. */
export function isLimiting({ rates, requests, telemetryTtlDays, ...limited }: ProfileLimits): boolean {
  const texts = [...Object.values(rates).flatMap((ofScope) => Object.values(ofScope)), ...Object.values(requests)];
  return Object.values(limited).some((max) => max > 0) || texts.some((text) => text !== '');
}
