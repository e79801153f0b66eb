/** What the primary and the process of the insert relay tell each other. */

/** The settings travel in the environment: an argument would show the password in the URL to every user. */
export const relaySettingsVariable = 'MILLRACE_INSERT_RELAY';

export interface RelaySettings {
  /** The ClickHouse server behind the relay. */
  url: string;
  port: number;
}

/** `everyMs`: the least milliseconds between two inserts of one statement. */
export type ToRelay = { everyMs: number } | { stop: true };
/** Sent once, when the relay listens. */
export type FromRelay = { listens: true };
