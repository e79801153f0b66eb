/** `v1/devices/me/claim`: a device allows a user to claim it. The payload may be empty. */

import type { Admission } from '../../activity/admission.ts';
import { decodeClaim } from '../../admin/claim-rules.ts';
import { type ClaimDeps, registerClaim } from '../../onboarding/claim.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { run } from '../session/operation.ts';
import type { TopicEntries } from './table.ts';

interface ClaimTopicsDeps {
  admission: Admission;
  claims: ClaimDeps;
  readBody: ReadBody;
}

export function claimTopics({ admission, claims, readBody }: ClaimTopicsDeps): TopicEntries {
  return {
    exact: {
      'v1/devices/me/claim': (publish) => {
        const { device } = publish.session;
        admission.count(device);
        const request = decodeClaim(publish.payload, readBody);
        admission.touch(device);
        run(publish, () => registerClaim(claims, device, request));
      },
    },
  };
}
