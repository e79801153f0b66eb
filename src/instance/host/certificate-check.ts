/** Checks the certificates of HTTPS and MQTT before any other step: their servers would fail without a reason. */
import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { messageOf, StartError } from '../../base/errors.ts';

interface TlsSettings {
  enabled: boolean;
  cert: string;
  key: string;
}

/** Names of the settings begin with `prefix`: SSL, MQTT_SSL. Throws one line that names the file and its setting. */
export function checkTls({ enabled, cert, key }: TlsSettings, prefix: string): void {
  if (!enabled) return;
  const certificate = parse(cert, prefix, 'PEM_CERT', 'certificate', (pem) => new X509Certificate(pem));
  const privateKey = parse<KeyObject>(key, prefix, 'PEM_KEY', 'private key without a passphrase', createPrivateKey);
  if (!certificate.checkPrivateKey(privateKey)) {
    throw new StartError(`The private key ${key} (${prefix}_PEM_KEY) does not belong to the certificate ${cert}.`);
  }
}

function parse<T>(path: string, prefix: string, name: string, what: string, read: (pem: Buffer) => T): T {
  const setting = `${prefix}_${name}`;
  if (path === '') throw new StartError(`${prefix}_ENABLED is true: ${setting} must name the PEM file of a ${what}.`);
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
