/**
 * Telemetry of the signed-in device: the hot path of MQTT. Order of checks: room in the journal, quotas, messages of
 * the rate limit, JSON, data points of the rate limit, keys. A message allocates nothing here.
 */

import type { Admission } from '../../activity/admission.ts';
import { badRequest } from '../../base/errors.ts';
import type { CachedDevice } from '../../device/model/cached-device.ts';
import type { Decode, Ingest } from '../../ingest/accept.ts';
import type { Operation } from '../session/operation.ts';
import { protobufRefused, type TopicEntries } from './table.ts';

interface TelemetryTopicDeps {
  ingest: Ingest;
  decode: Decode<CachedDevice>;
  admission: Admission;
}

const missingPayload = badRequest('missing_body', 'The payload is empty: send JSON.');

export function telemetryTopics(deps: TelemetryTopicDeps): TopicEntries {
  const post = telemetryOperation(deps);
  return {
    exact: { 'v1/devices/me/telemetry': post, 'v2/t': post, 'v2/t/j': post, 'v2/t/p': protobufRefused },
  };
}

/** Also serves the telemetry topic of a profile. */
export function telemetryOperation({ ingest, decode, admission }: TelemetryTopicDeps): Operation {
  return (publish) => {
    const { payload, session, readAt } = publish;
    const { device } = session;
    if (payload.length === 0) throw missingPayload;
    const isLimited = admission.isLimiting;
    if (isLimited) {
      // Checked first: a message that waits for the journal comes here again, and must be counted once.
      const refusal = ingest.refusal();
      if (refusal !== undefined) throw refusal;
      admission.admit(device);
    }
    const charge = isLimited ? admission.charge : undefined;
    const points = ingest.accept(decode, payload, device, publish, charge, device, readAt);
    admission.accepted(device, points, readAt);
  };
}
