/** `v1/gateway/claim`: connected devices of this gateway allow a user to claim them. */

import type { Admission } from '../../activity/admission.ts';
import { type ClaimRequest, claimRequest } from '../../admin/claim-rules.ts';
import { badRequest, faultOrThrow } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import { Refusals } from '../../gateway/refusals.ts';
import { type ClaimDeps, registerClaim } from '../../onboarding/claim.ts';
import { readByName } from '../../value/by-name.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { run } from '../session/operation.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayClaimDeps {
  admission: Admission;
  claims: ClaimDeps;
  readBody: ReadBody;
}

export function gatewayClaimTopics(
  sessions: GatewaySessions,
  { admission, claims, readBody }: GatewayClaimDeps,
): TopicEntries {
  async function claimOne(gateway: Gateway, name: string, request: ClaimRequest): Promise<void> {
    const child = gateway.child(name);
    if (!child) throw notConnected;
    admission.childMessage(gateway.device);
    admission.touch(child.device);
    await registerClaim(claims, child.device, request);
  }

  async function claimAll(gateway: Gateway, requests: [string, ClaimRequest][], refusals: Refusals): Promise<void> {
    for (let i = 0; i < requests.length; i += limits.gatewayClaimsAtOnce) {
      const some = requests.slice(i, i + limits.gatewayClaimsAtOnce).map(async ([name, request]) => {
        try {
          await claimOne(gateway, name, request);
        } catch (error) {
          refusals.add(name, faultOrThrow(error));
        }
      });
      await Promise.all(some);
    }
    const fault = refusals.fault();
    if (fault) throw fault;
  }

  return {
    exact: {
      'v1/gateway/claim': (publish) => {
        const gateway = sessions.of(publish.session);
        const refusals = new Refusals();
        const requests = refusals.decodeParts(readBody(publish.payload, readByName), claimRequest);
        // Runs after the connects that are in progress.
        const release = sessions.gateways.hold(gateway.device, publish.payload.length);
        gateway.run([], () => {
          release();
          run(publish, () => claimAll(gateway, requests, refusals));
        });
      },
    },
  };
}

const notConnected = badRequest(
  'claim_child',
  'The device is not connected through this gateway; publish v1/gateway/connect first.',
);
