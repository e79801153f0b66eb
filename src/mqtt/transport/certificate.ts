/**
 * Reads the certificate that a TLS client has sent. The handshake proved that the client holds its key, and nothing
 * else.
 */
import type { X509Certificate } from 'node:crypto';
import type { TLSSocket } from 'node:tls';
import { type ClientCertificate, clientCertificate } from '../../onboarding/certificate-provision.ts';

/** Returns undefined when the client sent no certificate. Called after the handshake. */
export function certificateOf(socket: TLSSocket): ClientCertificate | undefined {
  const leaf = socket.getPeerX509Certificate();
  if (!leaf) return undefined;
  return clientCertificate(leaf, issuersOf(leaf));
}

const issuersMax = 5;

/** Returns the further certificates of the client; whether they form a chain is checked later. */
function issuersOf(leaf: X509Certificate): X509Certificate[] {
  const issuers: X509Certificate[] = [];
  for (let at = leaf.issuerCertificate; at && issuers.length < issuersMax; at = at.issuerCertificate) {
    if (at.fingerprint256 === (issuers.at(-1) ?? leaf).fingerprint256) break;
    issuers.push(at);
  }
  return issuers;
}
