/** Self-signed certificates for tests, made by openssl. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

interface Certificate {
  /** Paths of the PEM files. */
  cert: string;
  key: string;
  /** Returns the certificate that a client trusts. */
  pem: string;
}

export function createCertificate(directory: string, name: string): Certificate {
  const [cert, key] = [join(directory, `${name}.cert.pem`), join(directory, `${name}.key.pem`)];
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  execFileSync('openssl', ['req', '-x509', ...curve, '-days', '2', ...subject, '-keyout', key, '-out', cert], {
    stdio: 'pipe',
  });
  return { cert, key, pem: readFileSync(cert, 'utf8') };
}

type Files = Pick<Certificate, 'cert' | 'key'>;

/** The settings of an engine that also serves MQTT over TLS. */
export function mqttsSettings(port: number, { cert, key }: Files) {
  return {
    MQTT_SSL_ENABLED: 'true',
    MQTT_SSL_BIND_ADDRESS: '127.0.0.1',
    MQTT_SSL_BIND_PORT: String(port),
    MQTT_SSL_PEM_CERT: cert,
    MQTT_SSL_PEM_KEY: key,
  };
}

/** The settings of an engine that also serves HTTPS. */
export function httpsSettings(port: number, { cert, key }: Files) {
  return { SSL_ENABLED: 'true', HTTPS_BIND_PORT: String(port), SSL_PEM_CERT: cert, SSL_PEM_KEY: key };
}
