/**
 * POST /api/v1/{token}/claim: the device allows a user to claim it. 200 confirms only that the request was received.
 * Order of checks: token, rate limit, JSON.
 */

import { decodeClaim } from '../admin/claim-rules.ts';
import { limits } from '../base/limits.ts';
import { type ClaimDeps, registerClaim } from '../onboarding/claim.ts';
import type { HttpServer } from '../uws/server.ts';
import type { ReadBody } from '../value/lenient.ts';
import type { DeviceAuth } from './device-auth.ts';

interface ClaimDoorDeps {
  server: HttpServer;
  deviceAuth: DeviceAuth;
  claims: ClaimDeps;
  readBody: ReadBody;
}

export function claimDoor({ server, deviceAuth, claims, readBody }: ClaimDoorDeps): void {
  server.route(
    'POST',
    '/api/v1/:token/claim',
    deviceAuth.recorded(async (request) => {
      const { params, body } = request;
      const device = await deviceAuth.count(params[0]!, request);
      const claim = decodeClaim(body, readBody);
      deviceAuth.admission.touch(device);
      await registerClaim(claims, device, claim);
      return { status: 200 };
    }),
    limits.onboardingBodyBytesMax,
    (request) => deviceAuth.admitBody(request.params[0]!, request),
  );
}
