/**
 * The interface between a connection and the sign-in. The rules are in `login.ts`; `worker/doors.ts` connects the two.
 */
import type { CachedDevice } from '../../device/model/cached-device.ts';
import type { ProfileTopics } from '../../device/model/profile-topics.ts';
import type { ClientCertificate } from '../../onboarding/certificate-provision.ts';
import type { ConnectRefusal } from '../packets/connect.ts';
import type { CloseReason } from '../wire/close-reason.ts';

export interface SignInRequest {
  clientId: string;
  username: string | undefined;
  password: Buffer | undefined;
  /** The certificate that a TLS client has sent: `certificateOf(socket)`. */
  certificate: ClientCertificate | undefined;
  remoteAddress: string;
}

export interface SignedIn {
  readonly device: CachedDevice;
  readonly isGateway: boolean;
  /** Topics that the device's profile added at the time of the sign-in. */
  readonly topics: ProfileTopics | undefined;
  /** Must be called when the connection no longer uses the device. */
  end(): void;
}

/** The connection that signs in. */
export interface SignInOwner {
  /** True when the client has reset the connection: it gets no session, and no answer. */
  readonly isReset: boolean;
  /** Called when another session or a change of the device ended this session. Never called inside `SignIn`. */
  sessionEnded(reason: CloseReason): void;
}

export interface SignInRefused {
  refused: ConnectRefusal;
  /** A more precise sentence than that of the refusal. */
  text?: string;
}

/** Signs a client in. `owner` is called only after a success. */
export type SignIn = (
  request: SignInRequest,
  owner: SignInOwner,
) => SignedIn | SignInRefused | Promise<SignedIn | SignInRefused>;
