/** The certificate that a TLS client has shown. That it owns the key was proved by the handshake; nothing else was. */
import type { X509Certificate } from 'node:crypto';
import type { TLSSocket } from 'node:tls';
import { type ClientCertificate, clientCertificate } from '../onboarding/certificate-provision.ts';

/** Undefined when it has shown none. Call it once the handshake is done. */
export function certificateOf(socket: TLSSocket): ClientCertificate | undefined {
  const leaf = socket.getPeerX509Certificate();
  if (!leaf) return undefined;
  return clientCertificate(leaf, issuersOf(leaf));
}

const issuersMax = 5;

/** What the client sent beside its own: whether they belong together is not known yet. */
function issuersOf(leaf: X509Certificate): X509Certificate[] {
  const issuers: X509Certificate[] = [];
  for (let at = leaf.issuerCertificate; at && issuers.length < issuersMax; at = at.issuerCertificate) {
    if (at.fingerprint256 === (issuers.at(-1) ?? leaf).fingerprint256) break;
    issuers.push(at);
  }
  return issuers;
}
