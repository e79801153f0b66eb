/** What the primary and the process of the insert relay tell each other. */

/** The settings travel in the environment: an argument would show the password in the URL to every user. */
export const relaySettingsVariable = 'MILLRACE_INSERT_RELAY';

export interface RelaySettings {
  /** The ClickHouse servers, which are the shards, each with the port at which the relay takes its inserts. */
  servers: { url: string; port: number }[];
}

/** `everyMs`: for each server, the least milliseconds between two inserts of one statement. */
export type ToRelay = { everyMs: readonly number[] } | { stop: true };
/** Sent once, when the relay listens on every port. */
export type FromRelay = { listens: true };
