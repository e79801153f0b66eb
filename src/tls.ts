/** The certificate of HTTPS, checked before anything starts: the library that serves it would fail without a reason. */
import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Config } from './base/config.ts';
import { messageOf, StartError } from './base/errors.ts';

/** Throws one line that names the file and its setting. */
export function checkTls({ enabled, cert, key }: Config['ssl']): void {
  if (!enabled) return;
  const certificate = parse(cert, 'SSL_PEM_CERT', 'certificate', (pem) => new X509Certificate(pem));
  const privateKey = parse<KeyObject>(key, 'SSL_PEM_KEY', 'private key without a passphrase', createPrivateKey);
  if (!certificate.checkPrivateKey(privateKey)) {
    throw new StartError(`The private key ${key} (SSL_PEM_KEY) does not belong to the certificate ${cert}.`);
  }
}

function parse<T>(path: string, setting: string, what: string, read: (pem: Buffer) => T): T {
  if (path === '') throw new StartError(`SSL_ENABLED is true: ${setting} must name the PEM file of a ${what}.`);
  let pem: Buffer;
  try {
    pem = readFileSync(path);
  } catch (error) {
    throw new StartError(`The file ${path} (${setting}) cannot be read: ${messageOf(error)}.`);
  }
  try {
    if (!pem.includes('-----BEGIN ')) throw new Error('no PEM');
    return read(pem);
  } catch {
    throw new StartError(`The file ${path} (${setting}) is not the PEM of a ${what}.`);
  }
}
