/** How a connection asks who it is: the rules of signing in are `device/logins.ts`, wired in `worker.ts`. */
import type { CachedDevice } from '../device/cached-device.ts';
import type { ProfileTopics } from '../device/profile-topics.ts';
import type { ClientCertificate } from '../onboarding/certificate-provision.ts';
import type { CloseReason } from './close-reason.ts';
import type { Refusal } from './packets/connect.ts';

export interface SignInRequest {
  clientId: string;
  username: string | undefined;
  password: Buffer | undefined;
  /** What a TLS client has shown: `certificateOf(socket)`. */
  certificate: ClientCertificate | undefined;
  remoteAddress: string;
}

export interface SignedIn {
  device: CachedDevice;
  isGateway: boolean;
  /** Topics that the device's profile adds, as they were at sign-in. */
  topics: ProfileTopics | undefined;
  /** Called when the connection no longer uses the device. */
  end(): void;
}

/** The connection that signs in. */
export interface SignInOwner {
  /** Another session or a change of the device ended this session. Never called inside `SignIn`. */
  sessionEnded(reason: CloseReason): void;
}

export interface SignInRefused {
  refused: Refusal;
  /** Instead of the sentence of the refusal, when there is more to say. */
  text?: string;
}

/** `owner` is called only after a success. A known answer comes in the same turn. Never throws. */
export type SignIn = (
  request: SignInRequest,
  owner: SignInOwner,
) => SignedIn | SignInRefused | Promise<SignedIn | SignInRefused>;
