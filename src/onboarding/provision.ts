/**
 * Provisioning: a device that sends the key and the secret of a profile gets credentials (docs/http.md#provisioning).
 * One transaction makes the device, its credentials and the mark of its provisioning, so only one of two concurrent
 * requests gets credentials. When its commit gets no answer, the transaction is repeated, because a later request would
 * be refused.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import { insertNewDevice, type NewDeviceDeps } from '../admin/devices.ts';
import { deviceLimitReason } from '../admin/entity-limits.ts';
import { type CheckAgain, choosing } from '../admin/taken-names.ts';
import type { WrongTries } from '../auth/wrong-tries.ts';
import { assert, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { networkOf } from '../base/network.ts';
import type { Turns } from '../base/turns.ts';
import { createUuid } from '../base/uuid.ts';
import { createAccessToken, type FullProfile } from '../device/model/device.ts';
import { areOthersCredentials, findCredentials } from '../device/sql/credentials-store.ts';
import { findProfileByProvisionKey } from '../device/sql/profile-store.ts';
import { findDevice, findDeviceByName, lockDevice } from '../device/sql/store.ts';
import type { Queries } from '../postgres/client.ts';
import { untilAnswered } from '../postgres/lost-commit.ts';
import { isAway, isForeignKeyViolation } from '../postgres/postgres-error.ts';
import { findMark, markProvisioned } from './provision-mark-store.ts';
import { type ProvisionOutcome, type ProvisionRequest, requestedCredentials } from './provision-request.ts';

export interface ProvisionDeps extends NewDeviceDeps {
  /** Keys of profiles, and certificates that no profile answers for. */
  wrongKeys: WrongTries;
  /** Requests at once, by network. Absent where nothing is bounded. */
  turns?: Turns;
  log: Log;
}

/** A sender that knows the secret of a profile gets no power over other devices (`device/model/gateway-scope.ts`). */
const confinedGateway = { gateway: true, gatewayScope: 'own' };
const unguessable = randomBytes(32).toString('base64');

/** Throws 429 when the address has sent too many wrong keys. */
export async function provision(
  deps: ProvisionDeps,
  request: ProvisionRequest,
  remoteAddress: string,
): Promise<ProvisionOutcome> {
  const work = () => provisionNow(deps, request, remoteAddress);
  return await (deps.turns?.run(networkOf(remoteAddress), null, work) ?? work());
}

async function provisionNow(
  deps: ProvisionDeps,
  request: ProvisionRequest,
  remoteAddress: string,
): Promise<ProvisionOutcome> {
  const profile = await deps.wrongKeys.find(remoteAddress, () => openedProfile(deps.postgres, request));
  if (!profile) return { status: 'NOT_FOUND' };
  const outcome = await provisionIn(deps, profile, request);
  deps.log.info('provisioned', { profile: profile.id, outcome: outcome.status });
  return outcome;
}

/** Takes the same time and gives the same answer for a wrong key and for a wrong secret. */
async function openedProfile(queries: Queries, { key, secret }: ProvisionRequest): Promise<FullProfile | undefined> {
  const isKey = key.length <= limits.tokenCharsMax && !key.includes('\0');
  const profile = await findProfileByProvisionKey(queries, isKey ? key : '');
  const stored = profile?.data.provisionConfiguration.provisionDeviceSecret || unguessable;
  return timingSafeEqual(digest(stored), digest(secret)) ? profile : undefined;
}

async function provisionIn(
  deps: ProvisionDeps,
  profile: FullProfile,
  request: ProvisionRequest,
): Promise<ProvisionOutcome> {
  switch (profile.provisionType) {
    case 'DISABLED':
    // A certificate chain comes with a TLS handshake, which this request does not have.
    case 'X509_CERTIFICATE_CHAIN':
      return { status: 'NOT_FOUND' };
    case 'ALLOW_CREATE_NEW_DEVICES':
      return await createProvisioned(deps, profile, request);
    case 'CHECK_PRE_PROVISIONED_DEVICES':
      return await handOut(deps, profile, request);
  }
}

async function createProvisioned(
  deps: ProvisionDeps,
  profile: FullProfile,
  request: ProvisionRequest,
): Promise<ProvisionOutcome> {
  const { postgres, changes, clock, limitsOf, onAssigned } = deps;
  const { tenantId } = profile;
  const name = request.deviceName ?? createAccessToken();
  const input = { name, profileId: profile.id, additionalInfo: request.gateway ? confinedGateway : null };
  const id = createUuid(clock.now());
  try {
    const credentials = requestedCredentials(request);
    const isOthers = () => areOthersCredentials(postgres, tenantId, credentials.credentialsId);
    const create = (checkAgain: CheckAgain) =>
      postgres.transaction(async (queries) => {
        const now = clock.now();
        const { devicesMax } = limitsOf(tenantId);
        const inserted = await insertNewDevice(queries, tenantId, input, credentials, now, devicesMax, id);
        await markProvisioned(queries, inserted.device.number, clock.now());
        await checkAgain(queries);
        return { changed: [inserted.change], assigned: inserted.assigned };
      });
    const createOnce = (checkAgain: CheckAgain) =>
      untilAnswered(async (isRepeated) => {
        try {
          return await create(checkAgain);
        } catch (error) {
          const isMade = isRepeated && !isAway(error) && (await findDevice(postgres, tenantId, id)) !== undefined;
          // An earlier run made the device. All workers poll for its change.
          if (isMade) return { changed: [], assigned: true };
          throw error;
        }
      });
    // A device with a profile's secret does not use up the share of the tenant's administrators.
    const isRandom = request.credentialsType === 'ACCESS_TOKEN' && !request.token;
    const owner = isRandom ? null : `profile ${profile.id}`;
    const { changed, assigned } = await choosing(deps, owner, isOthers, createOnce);
    changes.publish(changed);
    if (assigned) onAssigned?.();
    return { status: 'SUCCESS', credentials };
  } catch (error) {
    // Expected refusals: a name or token that is taken or malformed, a deleted profile, or the limit of devices.
    const isRefusal = error instanceof Fault && (error.status === 400 || error.reason === deviceLimitReason);
    if (isRefusal || isForeignKeyViolation(error)) return { status: 'FAILURE' };
    throw error;
  }
}

/** Returns the credentials of an existing device to the first request. */
async function handOut(
  { postgres, clock }: ProvisionDeps,
  profile: FullProfile,
  { deviceName }: ProvisionRequest,
): Promise<ProvisionOutcome> {
  if (!deviceName || deviceName.includes('\0')) return { status: 'FAILURE' };
  let ownMark: string | undefined;
  return await untilAnswered(() =>
    postgres.transaction(async (queries): Promise<ProvisionOutcome> => {
      const found = await findDeviceByName(queries, profile.tenantId, deviceName);
      if (!found || !(await lockDevice(queries, profile.tenantId, found.id))) return { status: 'FAILURE' };
      // Reads the device again, because another call may have changed the device before the lock.
      const device = await findDevice(queries, profile.tenantId, found.id);
      const isHere = device?.profileId === profile.id && device.name === deviceName;
      if (!isHere) return { status: 'FAILURE' };
      const mark = await findMark(queries, found.number);
      // The own mark is that of a run of this request whose commit got no answer.
      if (mark !== undefined && mark !== ownMark) return { status: 'FAILURE' };
      await markProvisioned(queries, found.number, clock.now());
      ownMark = await findMark(queries, found.number);
      const credentials = await findCredentials(queries, found.id);
      assert(credentials, 'a locked device has credentials');
      return { status: 'SUCCESS', credentials };
    }),
  );
}

function digest(secret: string): Buffer {
  return createHash('sha256').update(secret).digest();
}
