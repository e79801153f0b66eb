/** Certificates of devices and of their issuers, made by openssl in a directory that is removed after the test file. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface KeyPair {
  cert: string;
  key: string;
}

interface Validity {
  /** Days from now. */
  fromDays?: number;
  toDays?: number;
}

export class CertificateMaker {
  readonly #directory = mkdtempSync(join(tmpdir(), 'millrace-certificates-'));
  #made = 0;

  /** Self-signed, or signed by `issuer`. */
  make(commonName: string, { issuer, isIssuer = false, address, ...validity }: MakeOptions = {}): KeyPair {
    const path = join(this.#directory, String(++this.#made));
    const [cert, key, request, extensions] = ['cert', 'key', 'csr', 'ext'].map((end) => `${path}.${end}`) as string[];
    const signer = issuer ? `${path}.issuer` : undefined;
    const names = address === undefined ? '' : `subjectAltName=IP:${address}\n`;
    writeFileSync(extensions!, `basicConstraints=critical,CA:${isIssuer ? 'TRUE' : 'FALSE'}\n${names}`);
    run('req', '-new', ...curve, '-nodes', '-subj', `/CN=${commonName}`, '-keyout', key!, '-out', request!);
    if (issuer && signer) {
      writeFileSync(`${signer}.cert`, issuer.cert);
      writeFileSync(`${signer}.key`, issuer.key);
    }
    const { fromDays = -1, toDays = 2 } = validity;
    const [certOfSigner, keyOfSigner] = signer ? [`${signer}.cert`, `${signer}.key`] : [undefined, key!];
    const ca = join(this.#directory, `ca-${this.#made}`);
    writeFileSync(`${ca}.index`, '');
    writeFileSync(`${ca}.cnf`, configOf(ca, this.#directory));
    const own = certOfSigner ? ['-cert', certOfSigner] : ['-selfsign'];
    const dates = ['-startdate', dateOf(fromDays), '-enddate', dateOf(toDays)];
    const files = ['-keyfile', keyOfSigner, '-in', request!, '-out', cert!, '-extfile', extensions!];
    run('ca', '-batch', '-notext', '-config', `${ca}.cnf`, ...own, ...dates, ...files);
    return { cert: readFileSync(cert!, 'utf8'), key: readFileSync(key!, 'utf8') };
  }

  remove(): void {
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

interface MakeOptions extends Validity {
  issuer?: KeyPair;
  isIssuer?: boolean;
  /** The address of a server. */
  address?: string;
}

const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];

function run(...args: string[]): void {
  execFileSync('openssl', args, { stdio: 'pipe' });
}

function configOf(ca: string, directory: string): string {
  return `[ca]
default_ca = own
[own]
database = ${ca}.index
new_certs_dir = ${directory}
default_md = sha256
rand_serial = yes
policy = any
unique_subject = no
[any]
commonName = supplied
`;
}

/** `YYYYMMDDHHMMSSZ` */
function dateOf(days: number): string {
  return `${new Date(Date.now() + days * 86_400_000).toISOString().replaceAll(/[-:T]/g, '').slice(0, 14)}Z`;
}
