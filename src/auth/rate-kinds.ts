/** What rate limits count, and for whom. */

/** The counted kinds, and their names in a refusal. */
export const countedNouns = {
  messages: 'messages',
  telemetryMessages: 'telemetry messages',
  telemetryDataPoints: 'telemetry data points',
} as const;
export type Counted = keyof typeof countedNouns;
export const kinds = Object.keys(countedNouns) as Counted[];

export const scopeNames = ['device', 'gatewayDevice', 'gateway', 'tenant'] as const;
export type ScopeName = (typeof scopeNames)[number];

/** The limits of each scope and kind as strings of the settings; '' = unlimited. */
export type RateLimitSettings = Record<ScopeName, Record<Counted, string>>;

/** Calls of the REST API by a tenant, and by a customer; commands to the devices of a tenant. */
export const requestKinds = ['tenant', 'customer', 'commands'] as const;
export type RequestKind = (typeof requestKinds)[number];

/** The limits of each kind as strings of the settings; '' = unlimited. */
export type RequestRates = Record<RequestKind, string>;
