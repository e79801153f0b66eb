/**
 * POST /api/v1/{token}/claim (operation 8): the device says that it may be claimed. 200 tells only that this was heard.
 * Order of checks: token, rate limit, JSON.
 */
import type { RateLimits } from '../auth/rate-limits.ts';
import { limits } from '../base/limits.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import { type ClaimParts, registerClaim } from '../fleet/claim.ts';
import { decodeClaim } from '../fleet/claim-rules.ts';
import type { HttpServer } from '../uws/server.ts';
import { unknownToken } from './telemetry.ts';

export interface ClaimDoorParts {
  server: HttpServer;
  tokens: TokenCache;
  claims: ClaimParts;
  /** Undefined = unlimited. */
  rateLimits: RateLimits | undefined;
  touch: (device: CachedDevice) => void;
}

export function claimDoor({ server, tokens, claims, rateLimits, touch }: ClaimDoorParts): void {
  server.route(
    'POST',
    '/api/v1/:token/claim',
    async ({ params, body }) => {
      const device = await tokens.lookup(params[0]!);
      if (device === null) throw unknownToken;
      rateLimits?.message(device);
      await registerClaim(claims, device, decodeClaim(body));
      touch(device);
      return { status: 200 };
    },
    limits.fleetBodyBytesMax,
  );
}
