/**
 * What a connection makes of its first packet: CONNECT, the request to sign in, and the session with its CONNACK. These
 * functions have no state; `connection.ts` calls each of them once.
 */
import { randomUUID } from 'node:crypto';
import type { ClientCertificate } from '../onboarding/certificate-provision.ts';
import { type Connect, connackBytes, readConnect } from './packets/connect.ts';
import { Session, type SessionLink } from './session/session.ts';
import type { SignedIn, SignInRequest } from './sign-in/sign-in.ts';
import { packetType } from './wire/protocol.ts';
import type { ReceivedPackets } from './wire/received-packets.ts';
import { malformed } from './wire/wire-error.ts';

/** The user name or client id of a client that signs in without credentials, to be provisioned. */
const provision = 'provision';

/** Reads the packet that `received` holds. Throws a WireError when it is no CONNECT or gets no answer. */
export function readFirst({ type, flags, buffer, start, end }: ReceivedPackets): ReturnType<typeof readConnect> {
  if (type !== packetType.connect || flags !== 0) throw malformed;
  return readConnect(buffer, start, end);
}

export function asksForCredentials({ username, clientId }: Connect): boolean {
  return username === provision || clientId === provision;
}

export function signInRequest(
  { clientId, username, password }: Connect,
  remoteAddress: string,
  certificate: ClientCertificate | undefined,
): SignInRequest {
  return { clientId, username, password, certificate, remoteAddress };
}

/** `signedIn`: undefined for a session without credentials. An MQTT 5 client without a client id is assigned one. */
export function newSession(
  link: SessionLink,
  remoteAddress: string,
  { clientId, client: { level } }: Connect,
  signedIn: SignedIn | undefined,
): Session {
  return new Session(link, {
    device: signedIn?.device,
    kind: signedIn === undefined ? 'provision' : signedIn.isGateway ? 'gateway' : 'device',
    level,
    profileTopics: signedIn?.topics,
    clientId: clientId === '' && level === 5 ? randomUUID() : clientId,
    remoteAddress,
  });
}

/** Writes the CONNACK that opens the session. `worker`: '' = not sent. */
export function welcomeBytes(
  session: Session,
  { clientId }: Connect,
  caps: { packetBytesMax: number; inflightMax: number },
  worker: string,
): Buffer {
  return connackBytes(session.level, {
    packetBytesMax: caps.packetBytesMax,
    receiveMaximum: caps.inflightMax,
    assignedClientId: session.clientId === clientId ? '' : session.clientId,
    worker,
  });
}
