/**
 * Tenant A with two customers and a public one, tenant B beside it, and in each of them one of everything that an
 * operation can name. Every name contains a word of its owner, so that an answer with data of another owner is
 * recognized.
 */
import { randomUUID } from 'node:crypto';
import type { Ownership, Role } from './matrix-rules.ts';
import { newTenant, newUser, ok, type Person, systemAdminToken } from './people.ts';
import { receiptOf } from './receipts.ts';
import { good } from './reports.ts';

/**
 * Names that operations have for entities, in paths, queries and bodies. `peerId` is a second device of the same owner.
 */
export const slots = [
  ...(['deviceId', 'deviceName', 'deviceToken', 'peerId', 'customerId', 'customerTitle', 'tenantId'] as const),
  ...(['userId', 'profileId', 'otaPackageId', 'apiKeyId', 'rpcId', 'viewId', 'receipt', 'tenantProfileId'] as const),
];
export type Slot = (typeof slots)[number];
export type Things = Record<Slot, string>;

/** Places at which entities are: customers of tenant A, the tenant itself, and a customer of tenant B. */
type Place = 'c1' | 'c2' | 'public' | 'shared' | 'b';
export type CallerName = Role | 'customer with an API key';

// biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
type Json = any;

export interface Caller {
  role: Role;
  /** The value of X-Authorization. */
  credentials: string;
  userId: string;
  apiKeyId: string;
  password: string;
}

/** The entities that bodies refer to. */
export type NamedEntities = Pick<MatrixEntities, 'things' | 'missing' | 'admins' | 'customerUser' | 'made'>;

export class MatrixEntities {
  readonly callers: Record<CallerName, Caller>;
  readonly things: Record<Place, Things>;
  readonly admins: { a: Person; b: Person; system: string };
  readonly customerUser: Person;
  /** The answer of the API when the entity was made. */
  readonly made: Map<string, Json>;
  readonly missing: Things;
  readonly #makers: Record<Place, Maker>;

  private constructor(
    callers: MatrixEntities['callers'],
    things: MatrixEntities['things'],
    admins: MatrixEntities['admins'],
    customerUser: Person,
    made: Map<string, Json>,
    makers: Record<Place, Maker>,
  ) {
    this.callers = callers;
    this.things = things;
    this.admins = admins;
    this.customerUser = customerUser;
    this.made = made;
    this.#makers = makers;
    const missing = slots.map((slot) => [slot, /Name|Title|Token/.test(slot) ? `none-${randomUUID()}` : randomUUID()]);
    // No string names a device that never was: a receipt of another tenant is answered so.
    this.missing = { ...(Object.fromEntries(missing) as Things), receipt: things.b.receipt };
  }

  static async build(): Promise<MatrixEntities> {
    const made = new Map<string, Json>();
    const system = await systemAdminToken();
    const [a, b] = await Promise.all([newTenant('aaaa'), newTenant('bbbb')]);
    const of = (place: Place, tenant: typeof a) => new Maker(place, tenant.id, tenant.admin.token, made);
    const makers = {
      c1: of('c1', a),
      c2: of('c2', a),
      public: of('public', a),
      shared: of('shared', a),
      b: of('b', b),
    };
    const things = {} as Record<Place, Things>;
    // The first one makes the profile and the package of the tenant.
    things.c1 = await makers.c1.all();
    const rest = { profileId: things.c1.profileId, otaPackageId: things.c1.otaPackageId };
    await Promise.all([
      ...(['c2', 'public', 'shared'] as const).map(async (place) => {
        things[place] = await makers[place].all(rest);
      }),
      makers.b.all().then((all) => {
        things.b = all;
      }),
    ]);
    const customerUser = await newUser(
      { authority: 'CUSTOMER_USER', customerId: { id: things.c1.customerId } },
      undefined,
      a.admin.token,
    );
    const guest = await ok('POST', '/api/auth/login/public', { publicId: things.public.customerId }, '');
    const keyOf = async (userId: string, token: string) => {
      const key = { userId: { entityType: 'USER', id: userId }, description: 'own', enabled: true };
      const saved = await ok('POST', '/api/apiKey', key, token);
      made.set(saved.id.id, saved);
      return saved;
    };
    const systemUser = await ok('GET', '/api/auth/user', undefined, system);
    for (const person of [a.admin, customerUser]) {
      made.set(person.id, await ok('GET', `/api/user/${person.id}`, undefined, a.admin.token));
    }
    made.set(systemUser.id.id, systemUser);
    const [systemKey, adminKey, userKey] = await Promise.all([
      keyOf(systemUser.id.id, system),
      keyOf(a.admin.id, a.admin.token),
      keyOf(customerUser.id, customerUser.token),
    ]);
    const caller = (role: Role, { id, token, password }: Omit<Person, 'email'>, apiKeyId: string): Caller => {
      return { role, credentials: `Bearer ${token}`, userId: id, apiKeyId, password };
    };
    const customer = caller('customer', customerUser, userKey.id.id);
    const systemPerson = { id: systemUser.id.id, token: system, password: systemPassword };
    const callers = {
      system: caller('system', systemPerson, systemKey.id.id),
      tenant: caller('tenant', a.admin, adminKey.id.id),
      customer,
      'customer with an API key': { ...customer, credentials: `ApiKey ${userKey.value}` },
      guest: caller('guest', { id: '', token: guest.token, password: '' }, ''),
    };
    return new MatrixEntities(callers, things, { a: a.admin, b: b.admin, system }, customerUser, made, makers);
  }

  /** Returns the entities that `whose` means for the caller. */
  thingsOf(caller: Caller, whose: Ownership): Things {
    const { role } = caller;
    switch (whose) {
      case 'missing':
        return this.missing;
      case 'foreign':
        return this.things.b;
      case 'shared':
        return role === 'system' ? { ...this.things.shared, userId: this.admins.a.id } : this.things.shared;
      case 'other':
        return this.things.c2;
      case 'own': {
        if (role === 'guest') return this.things.public;
        return role === 'customer' ? this.things.c1 : { ...this.things.c1, userId: this.customerUser.id };
      }
      case 'self': {
        const own = this.things[role === 'tenant' ? 'shared' : 'c1'];
        return { ...own, userId: caller.userId, apiKeyId: caller.apiKeyId };
      }
    }
  }

  /** New entities like those of `thingsOf`, for a call that changes or deletes them. */
  async fresh(caller: Caller, whose: Ownership, slot: Slot): Promise<string> {
    const place = whose === 'shared' || whose === 'other' ? (whose === 'other' ? 'c2' : 'shared') : 'c1';
    if (slot === 'tenantId' && caller.role !== 'system') return this.things.c1.tenantId;
    if (whose !== 'self') return await this.#makers[place].one(slot);
    if (slot === 'userId') return caller.userId;
    return await this.#makers[place].one(slot, caller.userId, this.callers[caller.role]);
  }

  isAdmin(userId: string): boolean {
    return this.made.get(userId)?.authority !== 'CUSTOMER_USER';
  }

  /** Words of the owners of which the caller may learn nothing. */
  hiddenFrom({ role }: Caller): string[] {
    const hidden: Record<Role, Place[]> = {
      system: [],
      tenant: ['b'],
      customer: ['c2', 'public', 'shared', 'b'],
      guest: ['c1', 'c2', 'shared', 'b'],
    };
    return hidden[role].map(wordOf);
  }
}

export const viewFields = [{ label: 'Name', role: 'ROW', source: 'ENTITY_FIELD', key: 'name' }];

/** The password of the demo data. */
const systemPassword = 'sysadmin';
const run = randomUUID().slice(0, 8);
/** Part of every name that the owner gave. */
function wordOf(place: Place): string {
  return `only-${place}-${run}`;
}

/** Makes entities of one place, as the administrator of its tenant. */
class Maker {
  readonly #place: Place;
  readonly #tenantId: string;
  readonly #token: string;
  readonly #made: Map<string, Json>;
  #known: Partial<Things> = {};
  #isFurnished = false;

  constructor(place: Place, tenantId: string, token: string, made: Map<string, Json>) {
    this.#place = place;
    this.#tenantId = tenantId;
    this.#token = token;
    this.#made = made;
  }

  /** Makes one entity of each type; `given` exist already. */
  async all(given: Partial<Things> = {}): Promise<Things> {
    this.#known = { tenantId: this.#tenantId, ...given };
    for (const slot of [
      'profileId',
      'otaPackageId',
      'customerId',
      'userId',
      'apiKeyId',
      'deviceId',
      'peerId',
      'viewId',
      'tenantProfileId',
    ] as const) {
      this.#known[slot] ??= await this.one(slot);
    }
    const { deviceId = '', customerId } = this.#known;
    this.#known.rpcId = await this.#command(deviceId);
    const device = this.#made.get(deviceId);
    this.#known.deviceName = device.name;
    this.#known.deviceToken = device.token;
    this.#known.receipt = await receiptOf(device.token);
    this.#known.customerTitle = this.#made.get(customerId!).title;
    await this.#values('DEVICE', deviceId, this.#place);
    if (this.#place === 'c1' || this.#place === 'b') {
      await this.#values('CUSTOMER', customerId!, this.#place);
      await this.#values('TENANT', this.#tenantId, this.#place === 'b' ? 'b' : 'shared');
    }
    this.#isFurnished = true;
    return this.#known as Things;
  }

  /** A new entity for the slot. */
  async one(slot: Slot, userId = this.#known.userId, owner?: { credentials: string }): Promise<string> {
    // An entity made for one call may change its owner: only lasting ones carry the word of the owner.
    const name = `${this.#isFurnished ? 'fresh' : wordOf(this.#place)}-${randomUUID()}`;
    switch (slot) {
      case 'deviceName':
        return this.#made.get(await this.one('deviceId')).name;
      case 'deviceToken':
        return this.#made.get(await this.one('deviceId')).token;
      case 'receipt':
        return await receiptOf(await this.one('deviceToken'));
      case 'deviceId':
      case 'peerId': {
        const customerId = this.#place === 'shared' ? null : { entityType: 'CUSTOMER', id: this.#known.customerId };
        const device = { name, customerId, additionalInfo: { description: name } };
        const saved = await this.#save('/api/device', device);
        const credentials = await ok('GET', `/api/device/${saved.id.id}/credentials`, undefined, this.#token);
        this.#made.set(saved.id.id, { ...saved, token: credentials.credentialsId, credentials });
        return saved.id.id;
      }
      case 'customerId':
        if (this.#place !== 'public') return (await this.#save('/api/customer', { title: name })).id.id;
        return await this.#publicCustomer();
      case 'customerTitle':
        return this.#made.get(await this.one('customerId')).title;
      case 'tenantId': {
        const saved = await ok('POST', '/api/tenant', { title: name }, await systemAdminToken());
        this.#made.set(saved.id.id, saved);
        return saved.id.id;
      }
      case 'tenantProfileId': {
        const saved = await ok('POST', '/api/tenantProfile', { name }, await systemAdminToken());
        this.#made.set(saved.id.id, saved);
        return saved.id.id;
      }
      case 'userId': {
        // Users of a public customer, and of no customer at all, are administrators.
        const isAdmin = this.#place === 'shared' || this.#place === 'public';
        const customerId = isAdmin ? null : { entityType: 'CUSTOMER', id: this.#known.customerId };
        const authority = isAdmin ? 'TENANT_ADMIN' : 'CUSTOMER_USER';
        const user = { email: `${name}@orchard.example`, authority, customerId };
        return (await this.#save('/api/user?sendActivationMail=false', user)).id.id;
      }
      case 'profileId':
        return (await this.#save('/api/deviceProfile', { name: this.#sharedName() })).id.id;
      case 'otaPackageId': {
        const deviceProfileId = { entityType: 'DEVICE_PROFILE', id: this.#known.profileId };
        const described = { type: 'FIRMWARE', title: this.#sharedName(), version: '1', deviceProfileId };
        const { id } = await this.#save('/api/otaPackage', described);
        return id.id;
      }
      case 'apiKeyId': {
        const key = { userId: { entityType: 'USER', id: userId }, description: name, enabled: true };
        const token = owner?.credentials.replace('Bearer ', '') ?? this.#token;
        const saved = await ok('POST', '/api/apiKey', key, token);
        this.#made.set(saved.id.id, saved);
        return saved.id.id;
      }
      case 'rpcId':
        return await this.#command(await this.one('deviceId'));
      case 'viewId': {
        // A view of no customer is for all customers of the tenant.
        const isShared = this.#place === 'shared';
        const customerId = isShared ? null : this.#known.customerId;
        const view = { name: isShared ? this.#sharedName() : name, customerId, fields: viewFields };
        const saved = await good('POST', '/apiAnalytics/view', view, { token: this.#token });
        this.#made.set(saved.id, saved);
        return saved.id;
      }
    }
  }

  /** Profiles and packages are for all customers of a tenant. */
  #sharedName(): string {
    return this.#place === 'b' ? `${wordOf('b')}-${randomUUID()}` : `for-all-${randomUUID()}`;
  }

  /** The tenant has one, made by the first device that is given to it. */
  async #publicCustomer(): Promise<string> {
    const device = await ok('POST', '/api/device', { name: `${wordOf('public')}-${randomUUID()}` }, this.#token);
    const path = `/api/customer/public/device/${device.id.id}`;
    const { customerId } = await ok('POST', path, undefined, this.#token);
    const customer = await ok('GET', `/api/customer/${customerId.id}`, undefined, this.#token);
    this.#made.set(customerId.id, customer);
    return customerId.id;
  }

  async #command(deviceId: string): Promise<string> {
    const expirationTime = Date.now() + 3_600_000;
    const command = { method: wordOf(this.#place), params: {}, persistent: true, expirationTime };
    return (await ok('POST', `/api/rpc/oneway/${deviceId}`, command, this.#token)).rpcId;
  }

  async #values(type: string, id: string, owner: Place): Promise<void> {
    const path = `/api/plugins/telemetry/${type}/${id}`;
    await ok('POST', `${path}/attributes/SERVER_SCOPE`, { k: wordOf(owner) }, this.#token);
    await ok('POST', `${path}/timeseries/ANY`, { ts: 1_700_000_000_000, values: { k: wordOf(owner) } }, this.#token);
  }

  async #save(path: string, body: object): Promise<Json> {
    const saved = await ok('POST', path, body, this.#token);
    this.#made.set(saved.id.id, saved);
    return saved;
  }
}
