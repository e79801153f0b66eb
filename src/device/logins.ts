/**
 * Finds the device of an MQTT client (docs/mqtt.md#connect): by user name, password and client id, or by a certificate.
 * Waiting CONNECTs share one SQL query, and those that arrive while it runs share the next. After a query for several,
 * the next one waits a few milliseconds for more, and longer while each turn of the loop brings one. So a reconnect
 * storm makes few, large queries, and connections are accepted before sign-ins are answered: the kernel's queue has
 * room for few thousand connections, and what finds no room tries again seconds later. While PostgreSQL is unavailable,
 * a capped cache of earlier logins and the file of known devices answer. Both keep only keyed digests of passwords.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, messageOf, unavailable } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { isAway } from '../postgres/postgres-error.ts';
import type { FoundLogin } from './known/known-devices.ts';
import type { DeviceRow } from './model/cached-device.ts';
import { mqttBasicId, readMqttBasic } from './model/credentials.ts';
import type { CredentialsType, TransportType } from './model/device.ts';
import { compactRow, sharedText } from './model/device-row.ts';
import { type ProfileTopics, topicsOf } from './model/profile-topics.ts';
import type { CredentialChange } from './sql/credential-log-store.ts';
import type { LoginRow, ProfileTransport } from './sql/look-up-store.ts';

type LoginClaim =
  /** '' = absent. */
  | { kind: 'names'; clientId: string; userName: string; password: Buffer | undefined }
  /** `certificateId` of the certificate whose key the client has proven to hold. */
  | { kind: 'certificate'; credentialsId: string };

/** The reason of a refused login; the door has a code and a sentence for each. */
export type LoginRefusal = 'credentials' | 'client_id' | 'not_authorized' | 'certificate' | 'transport' | 'unavailable';

interface LoggedIn {
  device: DeviceRow;
  isGateway: boolean;
  /** Topics of the device's profile, if any; one object for all devices of a profile. */
  topics: ProfileTopics | undefined;
  /** Passed to `Sessions.open`. */
  credentialsVersion: number;
}

export type Login = { kind: 'accepted'; login: LoggedIn } | { kind: 'refused'; refusal: LoginRefusal };

interface LoginsDeps {
  /** Returns credentials of all kinds under these ids. */
  lookUp: (credentialsIds: string[]) => Promise<LoginRow[]>;
  lookUpProfiles: (ids: string[]) => Promise<ProfileTransport[]>;
  /** Answers while the store is unavailable: `KnownDevices`. */
  withoutStore?: LoginsWithoutStore;
  clock: Clock;
  log: Log;
}

export interface LoginsWithoutStore {
  readonly isStoreUnavailable: boolean;
  storeFailed(): void;
  /** Never rejects. */
  logins(credentialsIds: string[]): Promise<Map<string, FoundLogin>>;
}

/** Credentials from the cache or from the file. */
interface Known {
  type: CredentialsType;
  isNamed(clientId: string | null, userName: string | null): boolean;
  isPassword(password: Buffer): boolean;
  transportType: TransportType;
  login: LoggedIn;
}

interface Waiting {
  claim: LoginClaim;
  credentialsIds: string[];
  isAbandoned: () => boolean;
  /** The answer of a query during which the credentials changed: the store is asked once more. */
  outdated: Login | undefined;
  settle(login: Login): void;
}

/** Turns of the loop without a login after which no more are expected. A worker accepts one connection in a turn. */
const quietTurnsMax = 3;

export class Logins {
  readonly #deps: LoginsDeps;
  /** Logins by credentials id. */
  readonly #known = new FifoMap<string, Known>(limits.knownLoginsMax);
  readonly #profiles = new FifoMap<string, { version: number; topics: ProfileTopics | undefined }>(
    limits.profileTopicsMax,
  );
  readonly #key = randomBytes(32);
  #queue: Waiting[] = [];
  readonly #batches = new Batches(
    () => this.#queue.length > 0,
    () => this.#runBatch(),
  );
  /** Credentials that changed while a query ran: the query may have read their old state. */
  #changed = new Set<string | 'all'>();
  /** Monotonic time before which no batch begins. */
  #gatherUntilMs = Number.NEGATIVE_INFINITY;

  constructor(deps: LoginsDeps) {
    this.#deps = deps;
  }

  get waiting(): number {
    return this.#queue.length;
  }

  /**
   * Throws no fault: the outcome of a login that cannot be checked now is `unavailable`. `isAbandoned`: true when
   * the client no longer waits for the outcome, which is then `unavailable` without a query.
   */
  find(claim: LoginClaim, isAbandoned = () => false): Promise<Login> {
    const credentialsIds = idsOf(claim).filter(mayExist);
    if (credentialsIds.length === 0) return Promise.resolve(this.#judge(claim, () => undefined));
    if (this.#queue.length >= limits.loginQueueMax) return Promise.resolve(refused('unavailable'));
    return new Promise((settle) => {
      this.#queue.push({ claim, credentialsIds, isAbandoned, outdated: undefined, settle });
      this.#batches.wake();
    });
  }

  changed(change: CredentialChange | 'all'): void {
    if (change === 'all') this.#known.clear();
    else this.#known.delete(change.credentialsId);
    if (this.#batches.isRunning) this.#changed.add(change === 'all' ? 'all' : change.credentialsId);
  }

  async #runBatch(): Promise<void> {
    await this.#gather();
    const batch = this.#takeBatch();
    if (batch.length === 0) return;
    // A single login is followed by no pause: clients that sign in one after the other wait for nothing.
    const { clock } = this.#deps;
    this.#gatherUntilMs = batch.length > 1 ? clock.monotonic() + limits.loginGatherMs : Number.NEGATIVE_INFINITY;
    this.#changed.clear();
    if (this.#deps.withoutStore?.isStoreUnavailable) return await this.#settleWithoutStore(batch);
    try {
      const found = await this.#ask([...new Set(batch.flatMap((each) => each.credentialsIds))]);
      this.#remember(found);
      for (const waiting of batch) this.#answer(waiting, found);
    } catch (error) {
      const level = isAway(error) ? 'debug' : error instanceof Fault ? 'warn' : 'error';
      this.#deps.log[level]('logins_unanswered', { reason: messageOf(error), logins: batch.length });
      this.#deps.withoutStore?.storeFailed();
      await this.#settleWithoutStore(batch);
    }
  }

  /** Waits after a query for several logins: for a pause in which the next ones come, and on while they keep coming. */
  async #gather(): Promise<void> {
    const { clock } = this.#deps;
    const pauseMs = this.#gatherUntilMs - clock.monotonic();
    if (this.#gatherUntilMs === Number.NEGATIVE_INFINITY) return;
    if (pauseMs > 0 && this.#queue.length < limits.loginBatchMax) await systemScheduler.sleep(pauseMs);
    const untilMs = clock.monotonic() + limits.loginGatherMsMax;
    for (let quietTurns = 0; quietTurns < quietTurnsMax && clock.monotonic() < untilMs; ) {
      const waiting = this.#queue.length;
      await new Promise<void>((resolve) => systemScheduler.soon(resolve));
      quietTurns = this.#queue.length > waiting ? 0 : quietTurns + 1;
    }
  }

  #takeBatch(): Waiting[] {
    const batch: Waiting[] = [];
    let taken = 0;
    while (taken < this.#queue.length && batch.length < limits.loginBatchMax) {
      const waiting = this.#queue[taken]!;
      if (waiting.isAbandoned()) waiting.settle(refused('unavailable'));
      else batch.push(waiting);
      taken += 1;
    }
    this.#queue.splice(0, taken);
    return batch;
  }

  /**
   * Answers, or asks once more when the credentials changed while the query ran. Without the second answer a new device
   * would not be remembered, and would be unknown to a worker that loses the store within the next second.
   */
  #answer(waiting: Waiting, found: Map<string, Known>): void {
    const login = this.#judge(waiting.claim, (id) => found.get(id));
    if (waiting.outdated || !this.#isChanged(waiting)) {
      waiting.settle(login);
      return;
    }
    waiting.outdated = login;
    this.#queue.push(waiting);
  }

  #isChanged({ credentialsIds }: Waiting): boolean {
    return this.#changed.has('all') || credentialsIds.some((id) => this.#changed.has(id));
  }

  async #settleWithoutStore(batch: Waiting[]): Promise<void> {
    const ids = new Set(batch.flatMap(({ credentialsIds }) => credentialsIds));
    const found = new Map<string, Known>();
    // A remembered login may be forgotten during a read: then the file is asked for this login as well.
    for (const asked = new Set<string>(); ; ) {
      const missing = [...ids].filter((id) => !asked.has(id) && !this.#known.get(id));
      if (missing.length === 0) break;
      for (const id of missing) asked.add(id);
      for (const [id, login] of (await this.#deps.withoutStore?.logins(missing)) ?? [])
        found.set(id, knownOfFile(login));
    }
    for (const { claim, outdated, settle } of batch) {
      const login = this.#judgeWithoutStore(claim, found);
      settle(login.kind === 'refused' && outdated?.kind === 'accepted' ? outdated : login);
    }
  }

  async #ask(credentialsIds: string[]): Promise<Map<string, Known>> {
    return await inTime(limits.loginLookupTimeoutMs, async () => {
      const rows = await this.#deps.lookUp(credentialsIds);
      await this.#learnProfiles(rows);
      return new Map(rows.map((row) => [row.credentialsId, this.#knownOf(row)]));
    });
  }

  #remember(found: Map<string, Known>): void {
    if (this.#changed.has('all')) return;
    for (const [credentialsId, known] of found) {
      if (!this.#changed.has(credentialsId)) this.#known.set(credentialsId, known);
    }
  }

  /** Without the store only known devices get an answer, because an unknown one may exist. */
  #judgeWithoutStore(claim: LoginClaim, found: Map<string, Known>): Login {
    const login = this.#judge(claim, (id) => this.#known.get(id) ?? found.get(id));
    return login.kind === 'accepted' ? login : refused('unavailable');
  }

  #judge(claim: LoginClaim, find: (credentialsId: string) => Known | undefined): Login {
    if (claim.kind === 'certificate') {
      const known = find(claim.credentialsId);
      return known?.type === 'X509_CERTIFICATE' ? accepted(known) : refused('certificate');
    }
    const { clientId, userName, password } = claim;
    if (userName === '') {
      const known = clientId === '' ? undefined : find(mqttBasicId(clientId, ''));
      if (known && isBasic(known, clientId, null) && isRight(known, password)) return accepted(known);
      if (password && password.length > 0) return refused('credentials');
      return refused(clientId.trim() === '' ? 'not_authorized' : 'client_id');
    }
    const both = clientId === '' ? undefined : find(mqttBasicId(clientId, userName));
    if (both && isBasic(both, clientId, userName)) {
      return isRight(both, password) ? accepted(both) : refused('credentials');
    }
    const known = find(userName);
    if (known?.type === 'ACCESS_TOKEN') return accepted(known);
    if (known && isBasic(known, null, userName) && isRight(known, password)) return accepted(known);
    return refused('credentials');
  }

  #knownOf(row: LoginRow): Known {
    const { type, value, isGateway, credentialsVersion } = row;
    const transportType = sharedText(row.transportType);
    const topics = this.#profiles.get(row.profileId)?.topics;
    const login = { device: compactRow(row), isGateway, topics, credentialsVersion };
    // Other credentials have no names and no password, so they share what a closure would keep for each of them.
    if (type !== 'MQTT_BASIC') {
      return { type: sharedText(type), isNamed: never, isPassword: never, transportType, login };
    }
    const { clientId, userName, password } = readMqttBasic(value);
    const digest = password ? this.#digest(Buffer.from(password)) : undefined;
    return {
      type,
      isNamed: (client, user) => client === (clientId || null) && user === (userName || null),
      isPassword: (given) => digest === undefined || timingSafeEqual(digest, this.#digest(given)),
      transportType,
      login,
    };
  }

  /** Reads each profile once for each version: profiles are large and shared by many devices. */
  async #learnProfiles(rows: LoginRow[]): Promise<void> {
    const unread = new Set<string>();
    for (const { profileId, profileVersion, transportType } of rows) {
      if (transportType !== 'MQTT' || this.#profiles.get(profileId)?.version === profileVersion) continue;
      unread.add(profileId);
    }
    if (unread.size === 0) return;
    for (const { id, version, transport } of await this.#deps.lookUpProfiles([...unread])) {
      this.#profiles.set(id, { version, topics: topicsOf(transport) });
    }
  }

  #digest(password: Buffer): Buffer {
    return createHmac('sha256', this.#key).update(password).digest();
  }
}

function never(): boolean {
  return false;
}

function idsOf(claim: LoginClaim): string[] {
  if (claim.kind === 'certificate') return [claim.credentialsId];
  const { clientId, userName } = claim;
  if (clientId === '') return [userName];
  return userName === '' ? [mqttBasicId(clientId, '')] : [mqttBasicId(clientId, userName), userName];
}

/** PostgreSQL takes no NUL in a string: one such name would fail the lookup of the whole batch. */
function mayExist(credentialsId: string): boolean {
  return credentialsId !== '' && credentialsId.length <= limits.tokenCharsMax && !credentialsId.includes('\0');
}

/** Digests and plain user names share one name space, so the names in the record are compared as well. */
function isBasic(known: Known, clientId: string | null, userName: string | null): boolean {
  return known.type === 'MQTT_BASIC' && known.isNamed(clientId, userName);
}

function isRight(known: Known, password: Buffer | undefined): boolean {
  return known.isPassword(password ?? Buffer.alloc(0));
}

function knownOfFile({ device, topics, isNamed, isPassword }: FoundLogin): Known {
  const { type, transportType, row, credentialsVersion } = device;
  const login = { device: row, isGateway: row.isGateway, topics, credentialsVersion };
  return { type, isNamed, isPassword, transportType, login };
}

function accepted({ transportType, login }: Known): Login {
  if (transportType !== 'DEFAULT' && transportType !== 'MQTT') return refused('transport');
  return { kind: 'accepted', login };
}

function refused(refusal: LoginRefusal): Login {
  return { kind: 'refused', refusal };
}

function inTime<Result>(timeoutMs: number, work: () => Promise<Result>): Promise<Result> {
  return new Promise((resolve, reject) => {
    const expire = () => reject(unavailable('login_lookup_timeout', 'The lookup of devices took too long.'));
    const stopTimer = systemScheduler.after(timeoutMs, expire);
    work().then(resolve, reject).finally(stopTimer);
  });
}
