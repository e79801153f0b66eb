/**
 * Reads when the first certificate of the servers of the stream ends. A connection outlives the certificates with which
 * it was made, so each read makes a new connection to each server.
 */
import { TLSSocket } from 'node:tls';
import { connect, type NatsConnection } from '@nats-io/transport-node';
import { dayMs } from '../base/durations.ts';
import { StartError } from '../base/errors.ts';
import { listOfSetting } from '../base/settings/list-setting.ts';
import { streamConnection } from './connect.ts';
import { isCertificate } from './connect-reason.ts';
import type { StreamSettings } from './stream-names.ts';

interface CertificateEnd {
  /** The server as STREAM_URL names it. */
  server: string;
  /** Negative: the certificate has ended. */
  daysLeft: number;
}

export class ServerCertificates {
  readonly #settings: StreamSettings;
  readonly #name: string;
  readonly #onUnread: (reason: string) => void;
  /** Milliseconds, by the servers of STREAM_URL. A server that does not answer keeps what was read last. */
  readonly #ends = new Map<string, number>();

  /**
   * `name`: names the connections for the operator of the servers. `onUnread`: called with the reason when a file of
   * the settings cannot be read.
   */
  constructor(settings: StreamSettings, name: string, onUnread: (reason: string) => void) {
    this.#settings = settings;
    this.#name = name;
    this.#onUnread = onUnread;
  }

  /** Reads the certificates again. What was read last counts while a server does not answer, or a file is missing. */
  async refresh(): Promise<void> {
    const connection = this.#connectionOptions();
    if (connection === undefined) return;
    const { servers, ...options } = connection;
    const named = listOfSetting(this.#settings.url);
    const reads = servers.map(async (address, i) => {
      const server = named[i]!;
      try {
        const connection = await connect({ ...options, servers: [address], ignoreClusterUpdates: true });
        const endMs = certificateEndMs(connection);
        void connection.close().catch(() => {});
        if (endMs !== undefined) this.#ends.set(server, endMs);
      } catch (error) {
        if (isCertificate(error)) this.#ends.set(server, Math.min(this.#ends.get(server) ?? Date.now(), Date.now()));
      }
    });
    await Promise.all(reads);
  }

  /** Returns undefined while a file of the settings cannot be read, as in the middle of its replacement. */
  #connectionOptions(): ReturnType<typeof streamConnection> | undefined {
    try {
      return streamConnection(this.#settings, this.#name);
    } catch (error) {
      if (!(error instanceof StartError)) throw error;
      this.#onUnread(error.message);
      return undefined;
    }
  }

  /** The certificate that ends first; undefined without TLS, and until one was read. */
  get first(): CertificateEnd | undefined {
    let first: CertificateEnd | undefined;
    for (const [server, endMs] of this.#ends) {
      const daysLeft = (endMs - Date.now()) / dayMs;
      if (first === undefined || daysLeft < first.daysLeft) first = { server, daysLeft };
    }
    return first;
  }
}

/** True for a connection with TLS. */
export function hasCertificate(connection: NatsConnection): boolean {
  return certificateEndMs(connection) !== undefined;
}

/** Returns the end of the server's certificate, or of an issuer that ends earlier; undefined without TLS. */
function certificateEndMs(connection: NatsConnection): number | undefined {
  // No type of the client names its socket.
  const { protocol } = connection as unknown as { protocol?: { transport?: { socket?: unknown } } };
  const socket = protocol?.transport?.socket;
  if (!(socket instanceof TLSSocket)) return undefined;
  let endMs: number | undefined;
  let certificate = socket.getPeerCertificate(true);
  for (;;) {
    const { valid_to, issuerCertificate } = certificate;
    if (valid_to === undefined) return endMs;
    endMs = Math.min(endMs ?? Number.POSITIVE_INFINITY, Date.parse(valid_to));
    // A root is its own issuer.
    if (issuerCertificate === undefined || issuerCertificate === certificate) return endMs;
    certificate = issuerCertificate;
  }
}
