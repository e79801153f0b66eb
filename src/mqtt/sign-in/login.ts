/**
 * Identifies the sender of a CONNECT: the rules of docs/mqtt.md#connect in their order (provisioning is checked
 * earlier), then the one session that the device may have. The password is not kept.
 */

import { deviceLimitReason } from '../../admin/entity-limits.ts';
import type { RateLimits } from '../../auth/rate-limits.ts';
import { credentialsName, type WrongCredentials } from '../../auth/wrong-credentials.ts';
import type { Clock } from '../../base/clock.ts';
import { Fault } from '../../base/errors.ts';
import type { Login, LoginRefusal, Logins } from '../../device/logins.ts';
import type { CachedDevice, DeviceRow } from '../../device/model/cached-device.ts';
import type { ProfileTopics } from '../../device/model/profile-topics.ts';
import type { Strangers } from '../../diagnostics/strangers.ts';
import type { Troubles } from '../../diagnostics/troubles.ts';
import type { DeviceSession, Sessions } from '../../downlink/sessions.ts';
import {
  type CertificateProvisioner,
  type ClientCertificate,
  isInForce,
} from '../../onboarding/certificate-provision.ts';
import { closings } from '../wire/close-reason.ts';
import { isSenderBlocked } from './blocked.ts';
import type { SignedIn, SignIn, SignInOwner, SignInRefused, SignInRequest } from './sign-in.ts';

interface LoginDeps {
  logins: Logins;
  sessions: Sessions;
  certificates: CertificateProvisioner;
  /** Undefined = unlimited. */
  rateLimits: RateLimits;
  /** Undefined = an address may try without limit. */
  wrongCredentials: WrongCredentials | undefined;
  troubles: Troubles;
  strangers: Strangers;
  clock: Clock;
}

/** The session of a connection. A closure in place of `end` would keep the whole request as long as the session. */
class OpenSession implements SignedIn {
  readonly isGateway: boolean;
  readonly topics: ProfileTopics | undefined;
  readonly #session: DeviceSession;

  constructor(session: DeviceSession, isGateway: boolean, topics: ProfileTopics | undefined) {
    this.#session = session;
    this.isGateway = isGateway;
    this.topics = topics;
  }

  get device(): CachedDevice {
    return this.#session.device;
  }

  end(): void {
    this.#session.end();
  }
}

/** The outcome of a sign-in whose client has reset the connection. No client gets this answer. */
const ofNobody: SignInRefused = { refused: 'unavailable' };

export function createSignIn(deps: LoginDeps): SignIn {
  return (request, owner) => signIn(deps, request, owner);
}

async function signIn(deps: LoginDeps, request: SignInRequest, owner: SignInOwner): Promise<SignedIn | SignInRefused> {
  const { clientId, username, password, certificate, remoteAddress } = request;
  const { wrongCredentials, strangers } = deps;
  const credentials = wrongCredentials === undefined ? '' : nameOf(request);
  const isAbandoned = () => owner.isReset;
  try {
    wrongCredentials?.check(remoteAddress, credentials);
    const answer = certificate
      ? await byCertificate(deps, certificate, remoteAddress, isAbandoned)
      : await deps.logins.find({ kind: 'names', clientId, userName: username ?? '', password }, isAbandoned);
    // Checks again, so that parallel tries get no more answers than sequential ones.
    wrongCredentials?.check(remoteAddress, credentials);
    if (answer.kind === 'refused') {
      if (isWrong(answer.refusal)) {
        wrongCredentials?.wrong(remoteAddress);
        strangers.refused(remoteAddress, 'mqtt', answer.refusal);
      }
      return { refused: answer.refusal };
    }
    wrongCredentials?.right(remoteAddress, credentials);
    // In a storm a CONNECT waits for seconds: a session of a client that gave up would end the one of its next attempt.
    if (owner.isReset) return ofNobody;
    const { device: row, isGateway, topics, credentialsVersion } = answer.login;
    if (isSenderBlocked(row.id, remoteAddress)) return { refused: 'unavailable', text: closings.blocked.sentence };
    countConnect(deps, row, remoteAddress);
    const session = deps.sessions.open(row, owner, credentialsVersion);
    return new OpenSession(session, isGateway, topics);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return refusedBy(error);
  }
}

/** Counts a CONNECT as a message of the device. Above the rate limit records the refusal and throws 429. */
function countConnect({ rateLimits, troubles }: LoginDeps, device: DeviceRow, remoteAddress: string): void {
  try {
    rateLimits.message(device);
  } catch (error) {
    if (error instanceof Fault) troubles.connectRefused(device, error, { door: 'mqtt', address: () => remoteAddress });
    throw error;
  }
}

/**
 * Returns the name under which attempts with these credentials are counted. A token alone has the same name as over
 * HTTP, with any client id, so a right token counts for both doors.
 */
function nameOf({ clientId, username = '', password, certificate }: SignInRequest): string {
  if (certificate !== undefined) return certificate.credentialsId;
  return password === undefined || password.length === 0 ? username : credentialsName(clientId, username, password);
}

function isWrong(refusal: LoginRefusal): boolean {
  return refusal !== 'unavailable' && refusal !== 'transport';
}

async function byCertificate(
  { logins, certificates, clock }: LoginDeps,
  certificate: ClientCertificate,
  remoteAddress: string,
  isAbandoned: () => boolean,
): Promise<Login> {
  if (!isInForce(certificate.leaf, clock.now())) return { kind: 'refused', refusal: 'certificate' };
  const claim = { kind: 'certificate', credentialsId: certificate.credentialsId } as const;
  const login = await logins.find(claim, isAbandoned);
  if (login.kind === 'accepted' || login.refusal !== 'certificate') return login;
  return (await certificates.provision(certificate, remoteAddress)) === 'made'
    ? await logins.find(claim, isAbandoned)
    : login;
}

function refusedBy({ status, reason, message }: Fault): SignInRefused {
  if (reason === deviceLimitReason) return { refused: 'quota', text: message };
  return { refused: status === 429 ? 'rate' : 'unavailable', text: message };
}
