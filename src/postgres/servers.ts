/**
 * The servers that a URL names, and the pool of connections to the one in use. `postgres://user@a:5432,b:5432/db` names
 * several: the first one that is writable is used until it fails or has become read-only; then another one is searched.
 * A single server that has become read-only gets new connections, because its name may lead to another server now.
 */
import type { Duplex } from 'node:stream';
import type { ClientConfig, Client as PgClient, Pool as PgPool, PoolClient } from 'pg';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { Client } from './driver.ts';

interface ServersDeps {
  url: string;
  open: (url: string) => PgPool;
  /** Receives the errors of connections that no statement uses. */
  onError: (error: Error) => void;
}

/** The shape of a URL with hosts; the parameter `target_session_attrs` is that of libpq. */
const form = /^(postgres(?:ql)?:\/\/)((?:[^@/?]*@)?)([^/?]+)(\/[^?]*)?(\?.*)?$/i;

/** Returns a URL for each server. */
export function serverUrls(url: string): string[] {
  const [, scheme, login, hosts = '', path = '', query = ''] = form.exec(url) ?? [];
  const each = hosts.split(',').filter((host) => host !== '');
  if (each.length < 2) return [withoutIgnored(url)];
  return each.map((host) => withoutIgnored(`${scheme}${login}${host}${path}${query}`));
}

/**
 * Removes parameters that Millrace ignores. The driver does not know `target_session_attrs`: a writable server is
 * always searched. Each statement has a timeout of its own, and with `query_timeout` the driver would end some
 * statements earlier.
 */
function withoutIgnored(url: string): string {
  return ['target_session_attrs', 'query_timeout'].reduce((text, name) => {
    const pattern = new RegExp(`([?&])${name}=[^&]*(&|$)`, 'i');
    return text.replace(pattern, (_, before: string, after: string) => (after === '&' ? before : ''));
  }, url);
}

/** Returns hosts and ports, for messages; no user, no password. */
export function addressOf(url: string): string {
  const addresses = serverUrls(url).map((each) => {
    try {
      const { hostname, port } = new URL(each);
      return `${hostname}:${port || 5432}`;
    } catch {
      return 'the configured address';
    }
  });
  return addresses.join(', ');
}

export class Servers {
  readonly #deps: ServersDeps;
  readonly #urls: string[];
  /** The server in use. */
  #url: string;
  #pool: PgPool;
  /** The connections of the pool. */
  #clients: Set<PoolClient> = new Set();
  /** True when the server in use did not answer. */
  #isSilent = false;
  /** True while it is not known which server is writable. */
  #isDoubtful: boolean;
  #finding: Promise<void> | undefined;
  /** Callers that wait for the search. */
  #searchers = 0;
  /** Monotonic time of the last search or of the last new pool. */
  #changedAt = Number.NEGATIVE_INFINITY;
  #isClosed = false;

  constructor(deps: ServersDeps) {
    this.#deps = deps;
    this.#urls = serverUrls(deps.url);
    this.#url = this.#urls[0]!;
    this.#isDoubtful = this.areSeveral;
    this.#pool = this.#open();
  }

  /** The pool of the server in use, which may have failed since. */
  get pool(): PgPool {
    return this.#pool;
  }

  /** Resolves when the pool is that of a writable server, as far as is known. Rejects when there is none. */
  async ready(): Promise<void> {
    if (!this.#isDoubtful) return;
    this.#finding ??= this.#find().finally(() => {
      this.#finding = undefined;
    });
    this.#searchers += 1;
    try {
      await this.#finding;
    } finally {
      this.#searchers -= 1;
    }
  }

  /** Callers that wait for a writable server or for a connection to it. */
  get waiting(): number {
    return this.#searchers + this.#pool.waitingCount;
  }

  /** True when another server may take over. */
  get areSeveral(): boolean {
    return this.#urls.length > 1;
  }

  /** Called when the server in use does not answer. */
  failed(): void {
    this.#isDoubtful = this.areSeveral;
    this.#isSilent = true;
  }

  /** Called when the server in use refuses a write. */
  readOnly(): void {
    if (this.areSeveral) this.#isDoubtful = true;
    else if (performance.now() - this.#changedAt > limits.postgresServersMs) this.#use(this.#url);
  }

  /** Ends the connections of the pool, and the waits of their statements with them. */
  cut(): void {
    for (const client of this.#clients) streamOf(client)?.destroy();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#pool.end();
  }

  async #find(): Promise<void> {
    const waitMs = this.#changedAt + limits.postgresServersMs - performance.now();
    if (waitMs > 0) await systemScheduler.sleep(waitMs);
    this.#changedAt = performance.now();
    const states = await Promise.allSettled(this.#urls.map(isWritable));
    const writable = this.#urls.filter((_, i) => {
      const state = states[i]!;
      return state.status === 'fulfilled' && state.value;
    });
    // A former primary that is back without knowing of its successor may call itself writable, too.
    const url = writable.includes(this.#url) ? this.#url : writable[0];
    if (url === undefined) throw noneWritable(states);
    this.#isDoubtful = false;
    const silent = this.#isSilent ? this.#clients : undefined;
    this.#isSilent = false;
    if (url === this.#url) return;
    this.#use(url);
    // The former server no longer answers: waiting callers get the 503 now, not at the deadline of their statements.
    for (const client of silent ?? []) streamOf(client)?.destroy();
  }

  #use(url: string): void {
    if (this.#isClosed) return;
    const former = this.#pool;
    this.#changedAt = performance.now();
    this.#url = url;
    this.#pool = this.#open();
    // Statements that run are finished; their connections end with them.
    former.end().catch(() => {});
  }

  #open(): PgPool {
    const { open, onError } = this.#deps;
    const pool = open(this.#url);
    const clients = new Set<PoolClient>();
    this.#clients = clients;
    // A connection may break while idle or between two statements of a transaction; its next user gets the error.
    pool.on('error', onError);
    pool.on('connect', (client) => {
      clients.add(client);
      client.on('error', onError);
    });
    pool.on('remove', (client) => clients.delete(client));
    return pool;
  }
}

/** The types of the driver leave out the socket of a connection. */
function streamOf(client: PoolClient): Duplex | undefined {
  return (client as unknown as { connection?: { stream?: Duplex } }).connection?.stream;
}

/** The error that explains most: that of a server that answers is a refusal, and no other server accepts writes. */
function noneWritable(states: PromiseSettledResult<boolean>[]): Error {
  const failures = states.flatMap((state) => (state.status === 'rejected' ? [state.reason as Error] : []));
  const refusal = failures.find((error) => /^(28|3D)/.test((error as { code?: string }).code ?? ''));
  if (refusal) return refusal;
  const reasons = states.map((state) => (state.status === 'rejected' ? messageOf(state.reason) : 'read-only'));
  const error = new Error(`No server of DATABASE_URL accepts writes: ${reasons.join('; ')}`);
  return Object.assign(error, { code: readOnlyState });
}

/** SQLSTATE of a write at a server that is read-only: a standby, or a former primary. */
export const readOnlyState = '25006';

async function isWritable(url: string): Promise<boolean> {
  const options: ClientConfig = {
    connectionString: url,
    application_name: 'millrace',
    connectionTimeoutMillis: limits.postgresServerAskMsMax,
    query_timeout: limits.postgresServerAskMsMax,
  };
  const client: PgClient = new Client(options);
  client.on('error', () => {});
  try {
    await client.connect();
    const { rows } = await client.query<{ writable: boolean }>(
      `select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off' as writable`,
    );
    return rows[0]!.writable;
  } finally {
    client.end().catch(() => {});
  }
}
