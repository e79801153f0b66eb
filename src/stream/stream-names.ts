/**
 * The names that the servers know. Two streams carry the two lanes of the journal, so that neither waits for the other:
 * `<name>-live` with the subjects `<name>.live.<bucket>`, and `<name>-late`. Each has one durable consumer, which gives
 * a frame to one process of all hosts, and again to another one when it is not confirmed in time.
 */
import type { Config } from '../base/settings/config.ts';
import { type Lane, laneNames } from '../journal/journal.ts';

export type StreamSettings = Config['stream'];

export const consumerName = 'millrace';
/** The consumer that gives frames to be sent as JSON (`json-relay.ts`). */
export const jsonConsumerName = 'millrace-json';

export function streamName(settings: StreamSettings, lane: Lane): string {
  return `${settings.name}-${laneNames[lane]}`;
}

/** The stream of telemetry as JSON. */
export function jsonStreamName(settings: StreamSettings): string {
  return `${settings.name}-json`;
}

/** `bucket`: the bucket of a device, `*` for every bucket, or `probe`, which no device has. */
export function subjectOf(settings: StreamSettings, lane: Lane, bucket: number | '*' | 'probe'): string {
  return `${settings.name}.${laneNames[lane]}.${bucket}`;
}
