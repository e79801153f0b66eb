/**
 * POST /api/v1/provision, without a token in the path. Every outcome is 200 with a `status`; only a malformed request
 * is 400. The answer never repeats the request.
 */
import { limits } from '../base/limits.ts';
import { type ProvisionDeps, provision } from '../onboarding/provision.ts';
import { decodeProvision, provisionJson } from '../onboarding/provision-request.ts';
import { requireBody } from '../uws/missing-body.ts';
import type { HttpServer } from '../uws/server.ts';
import type { ReadBody } from '../value/lenient.ts';

interface ProvisionDoorDeps {
  server: HttpServer;
  provisioning: ProvisionDeps;
  readBody: ReadBody;
}

export function provisionDoor({ server, provisioning, readBody }: ProvisionDoorDeps): void {
  server.route(
    'POST',
    '/api/v1/provision',
    async ({ body, remoteAddress }) => {
      requireBody(body);
      const outcome = await provision(provisioning, decodeProvision(body, readBody), remoteAddress);
      return { status: 200, contentType: 'application/json', body: JSON.stringify(provisionJson(outcome)) };
    },
    limits.onboardingBodyBytesMax,
  );
}
