/** `v1/devices/me/claim`: the device says that it may be claimed. An empty payload is fine here, and only here. */
import { type ClaimDeps, registerClaim } from '../../fleet/claim.ts';
import { decodeClaim } from '../../fleet/claim-rules.ts';
import type { Meter } from '../../fleet/meter.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { run } from '../operation.ts';
import type { TopicEntries } from './table.ts';

export interface ClaimTopicsDeps {
  meter: Meter;
  claims: ClaimDeps;
  readBody: ReadBody;
}

export function claimTopics({ meter, claims, readBody }: ClaimTopicsDeps): TopicEntries {
  return {
    exact: {
      'v1/devices/me/claim': (publish) => {
        const { device } = publish.session;
        meter.message(device);
        const request = decodeClaim(publish.payload, readBody);
        run(publish, () => registerClaim(claims, device, request));
      },
    },
  };
}
