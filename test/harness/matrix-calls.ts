/**
 * Every operation of the API document as a call that names entities: its path, query and body. Throws for an operation
 * whose ids it cannot fill, with the name of that operation.
 */
import { randomUUID } from 'node:crypto';
import { type Caller, type NamedEntities, type Slot, slots, type Things, viewFields } from './matrix-entities.ts';
import { type Document, type Operation, type Parameter, resolved, type Schema, someValue } from './openapi.ts';
import { Random } from './random.ts';

export type ValueOf = (slot: Slot) => string;

interface Request {
  url: string;
  body: { type: string; content: string | FormData } | undefined;
}

export interface MatrixCall {
  /**
   * `POST /api/device id`: the entity type of the path is filled in, `id` = the body names the entity that is saved.
   */
  name: string;
  operation: Operation;
  slots: Slot[];
  request: (value: ValueOf, entities: NamedEntities, caller: Caller) => Request;
}

/** Kinds of entities that have relations and values. */
const slotOfType: Record<string, Slot> = {
  DEVICE: 'deviceId',
  CUSTOMER: 'customerId',
  TENANT: 'tenantId',
  USER: 'userId',
  DEVICE_PROFILE: 'profileId',
};

const slotOfPath: Record<string, Slot> = {
  deviceId: 'deviceId',
  deviceName: 'deviceName',
  deviceToken: 'deviceToken',
  customerId: 'customerId',
  tenantId: 'tenantId',
  userId: 'userId',
  profileId: 'profileId',
  tenantProfileId: 'tenantProfileId',
  otaPackageId: 'otaPackageId',
  apiKeyId: 'apiKeyId',
  rpcId: 'rpcId',
  viewId: 'viewId',
  receipt: 'receipt',
};

const constantOfPath: Record<string, string> = {
  scope: 'SERVER_SCOPE',
  seriesScope: 'ANY',
  ttlSeconds: '0',
  requestId: '1',
  enabled: 'true',
  otaPackageType: 'FIRMWARE',
  relationType: 'Contains',
};

const slotOfQuery: Record<string, Slot> = {
  deviceIds: 'deviceId',
  customerIds: 'customerId',
  userIds: 'userId',
  tenantIds: 'tenantId',
  ids: 'tenantProfileId',
  deviceProfileIds: 'profileId',
  deviceName: 'deviceName',
  customerTitle: 'customerTitle',
  fromId: 'deviceId',
  toId: 'peerId',
  entityId: 'deviceId',
};

const constantOfQuery: Record<string, string> = {
  pageSize: '100',
  page: '0',
  keys: 'k',
  startTs: '0',
  endTs: '1800000000000',
  deleteAllDataForKeys: 'true',
  sendActivationMail: 'false',
  checksumAlgorithm: 'MD5',
  fromType: 'DEVICE',
  toType: 'DEVICE',
  entityType: 'DEVICE',
  relationType: 'Matrix',
  timeout: '1',
  title: 'none',
  version: '1',
  activateToken: 'none',
  resetToken: 'none',
};

/** Parameters that need not be given, but name an entity. */
const given: Record<string, Record<string, Slot | undefined>> = {
  'GET /api/relations': { fromId: 'deviceId', fromType: undefined },
  'GET /api/relations/info': { fromId: 'deviceId', fromType: undefined },
  'GET /api/deviceProfile/devices/keys/timeseries': { deviceProfileId: 'profileId' },
  'GET /api/deviceProfile/devices/keys/attributes': { deviceProfileId: 'profileId' },
};

type BodyOf = (value: ValueOf, entities: NamedEntities, caller: Caller) => unknown;

const ref = (entityType: string, id: string) => ({ entityType, id });
const newName = () => `made-by-matrix-${randomUUID()}`;
const relation: BodyOf = (value) => ({
  from: ref('DEVICE', value('deviceId')),
  to: ref('DEVICE', value('peerId')),
  type: 'Matrix',
});

const bodies: Record<string, BodyOf> = {
  'POST /api/auth/login': (_, { admins }) => ({ username: admins.a.email, password: admins.a.password }),
  'POST /api/auth/login/public': (_, { missing }) => ({ publicId: missing.customerId }),
  // The same password again: refused after every check of the caller, and the session stays.
  'POST /api/auth/changePassword': (_, __, { password }) => ({ currentPassword: password, newPassword: password }),
  'POST /api/user': (_, { things }, { role }) => {
    const email = `${newName()}@orchard.example`;
    return role === 'system'
      ? { email, authority: 'TENANT_ADMIN', tenantId: ref('TENANT', things.c1.tenantId) }
      : { email, authority: 'CUSTOMER_USER', customerId: ref('CUSTOMER', things.c1.customerId) };
  },
  'POST /api/user id': (value, { made, customerUser }) => {
    const id = value('userId');
    const { version, ...user } = made.get(id) ?? made.get(customerUser.id);
    return { ...user, id: ref('USER', id), firstName: 'Matrix' };
  },
  'POST /api/apiKey': (value) => ({ userId: ref('USER', value('userId')), description: 'matrix', enabled: true }),
  'POST /api/apiKey id': (value, { made }, caller) => {
    const id = value('apiKeyId');
    const userId = made.get(id)?.userId ?? ref('USER', caller.userId);
    return { id: ref('API_KEY', id), userId, description: 'matrix', enabled: true };
  },
  'POST /api/tenant': () => ({ title: newName() }),
  'POST /api/tenant id': (value) => ({ id: ref('TENANT', value('tenantId')), title: newName() }),
  'POST /api/tenantProfile': () => ({ name: newName() }),
  'POST /api/tenantProfile id': (value) => ({ id: ref('TENANT_PROFILE', value('tenantProfileId')), name: newName() }),
  'POST /api/customer': () => ({ title: newName() }),
  'POST /api/customer id': (value) => ({ id: ref('CUSTOMER', value('customerId')), title: newName() }),
  'POST /api/device': () => ({ name: newName() }),
  'POST /api/device id': (value) => ({ id: ref('DEVICE', value('deviceId')), name: newName() }),
  'POST /api/device-with-credentials': () => ({
    device: { name: newName() },
    credentials: { credentialsType: 'ACCESS_TOKEN', credentialsId: newName() },
  }),
  'POST /api/device/credentials': (value, { made, things }) => {
    const deviceId = value('deviceId');
    const { id } = (made.get(deviceId) ?? made.get(things.c1.deviceId)).credentials;
    return { id, deviceId: ref('DEVICE', deviceId), credentialsType: 'ACCESS_TOKEN', credentialsId: newName() };
  },
  'POST /api/devices': (value) => ({
    parameters: { rootId: value('deviceId'), rootType: 'DEVICE', direction: 'FROM' },
    deviceTypes: ['default'],
  }),
  'POST /api/entitiesQuery/find': (value) => ({
    entityFilter: { type: 'entityList', entityType: 'DEVICE', entityList: [value('deviceId')] },
    entityFields: [{ type: 'ENTITY_FIELD', key: 'name' }],
    pageLink: { page: 0, pageSize: 10 },
  }),
  'POST /api/entitiesQuery/count': () => ({ entityFilter: { type: 'entityType', entityType: 'DEVICE' } }),
  'POST /api/devices/bulk': () => ({ devices: [{ name: newName() }] }),
  'POST /api/device/bulk_import': () => ({ file: newName(), mapping: { columns: [{ type: 'NAME' }] } }),
  'POST /api/deviceProfile': () => ({ name: newName() }),
  'POST /api/deviceProfile id': (value) => ({ id: ref('DEVICE_PROFILE', value('profileId')), name: newName() }),
  'POST /api/otaPackage': (_, { things }) => {
    const deviceProfileId = ref('DEVICE_PROFILE', things.c1.profileId);
    return { type: 'FIRMWARE', title: newName(), version: '1', deviceProfileId };
  },
  'POST /api/otaPackage id': (value, { made, things }) => {
    const id = value('otaPackageId');
    return { ...(made.get(id) ?? made.get(things.c1.otaPackageId)), id: ref('OTA_PACKAGE', id), additionalInfo: {} };
  },
  'POST /api/relation': relation,
  'POST /api/v2/relation': relation,
  'POST /apiAnalytics/publicApi/auth/login': (_, { admins }) => ({
    username: admins.a.email,
    password: admins.a.password,
  }),
  'POST /apiTrendz/publicApi/auth/login': (_, { admins }) => ({
    username: admins.a.email,
    password: admins.a.password,
  }),
  'POST /apiAnalytics/publicApi/buildReport': (value) => ({ viewConfigId: value('viewId') }),
  'POST /apiTrendz/publicApi/buildReport': (value) => ({ viewConfigId: value('viewId') }),
  'POST /apiAnalytics/view': () => ({ name: newName(), fields: viewFields }),
  'POST /apiAnalytics/view id': (value, { made, things }) => {
    const { version, ...view } = made.get(things.c1.viewId);
    return { ...view, id: value('viewId') };
  },
  'POST /apiAnalytics/view/preview': () => ({ fields: viewFields }),
  'POST /api/customer/device/{deviceName}/claim': () => ({ secretKey: 'pear' }),
};

/** Bodies of many operations at once. */
const bodiesOfMany: [fits: RegExp, body: unknown][] = [
  [/^POST .*\/(telemetry|attributes|timeseries)\b/, { k: 1 }],
  [/\/rpc\/(oneway|twoway)\//, { method: 'matrix', persistent: true }],
  [/^POST \/api\/v1\/.*\/rpc\b/, { method: 'matrix', params: {} }],
  [/^POST \/api\/v1\/provision/, { provisionDeviceKey: 'none', provisionDeviceSecret: 'none' }],
];

function bodyOfMany(name: string): BodyOf | undefined {
  const found = bodiesOfMany.find(([fits]) => fits.test(name));
  return found && (() => found[1]);
}

/**
 * The calls of an operation: one for each kind of entity that its path may name, and one that saves what it creates.
 */
export function callsOf(document: Document, operation: Operation): MatrixCall[] {
  const { method, path } = operation;
  const types = path.includes('{entityType}') ? Object.keys(slotOfType) : [''];
  const calls = types.map((type) => callOf(document, operation, path.replace('{entityType}', type), type, ''));
  if (bodies[`${method} ${path} id`]) calls.push(callOf(document, operation, path, '', ' id'));
  return calls;
}

function callOf(document: Document, operation: Operation, path: string, type: string, variant: string): MatrixCall {
  const { method, requestBody, parameters } = operation;
  const name = `${method} ${path}${variant}`;
  const pathSlot = (parameter: string): Slot | undefined =>
    parameter === 'entityId' ? slotOfType[type] : slotOfPath[parameter];
  const json = requestBody?.content['application/json']?.schema;
  const bodyOf = bodies[name] ?? bodyOfMany(name) ?? (json && generated(document, name, json));
  const queries = parameters.filter((each) => each.in === 'query' && isGiven(name, each));
  const request: MatrixCall['request'] = (value, entities, caller) => {
    const filled = path.replace(/\{(\w+)\}/g, (_, parameter: string) => {
      const slot = pathSlot(parameter);
      const text = slot ? value(slot) : constantOfPath[parameter];
      if (text === undefined) throw new Error(`${name}: the matrix has no value for {${parameter}} of the path`);
      return encodeURIComponent(text);
    });
    const query = new URLSearchParams();
    for (const { name: parameter } of queries) {
      const slot = given[name]?.[parameter] ?? slotOfQuery[parameter];
      const text = slot ? value(slot) : constantOfQuery[parameter];
      if (text === undefined) throw new Error(`${name}: the matrix has no value for "${parameter}" of the query`);
      query.set(parameter, text);
    }
    const url = queries.length > 0 ? `${filled}?${query}` : filled;
    return { url, body: requestBody && contentOf(requestBody.content, bodyOf?.(value, entities, caller)) };
  };
  return { name, operation, slots: usedSlots(request), request };
}

function isGiven(name: string, { name: parameter, required }: Parameter): boolean {
  if (required || parameter in (given[name] ?? {})) return true;
  return ['pageSize', 'page', 'keys', 'deleteAllDataForKeys', 'sendActivationMail', 'timeout'].includes(parameter);
}

/** Returns a valid body of the schema, except where it names entities. */
function generated(document: Document, name: string, schema: Schema): BodyOf {
  const { properties = {} } = resolved(document, schema);
  const naming = Object.keys(properties).filter((member) => /^id$|Ids?$/.test(member) && member !== 'externalId');
  if (naming.length > 0) throw new Error(`${name}: the matrix has no body with ${naming.join(', ')}`);
  return () => someValue(document, schema, new Random(1));
}

function contentOf(content: Record<string, unknown>, body: unknown): Request['body'] {
  if (content['multipart/form-data']) {
    const form = new FormData();
    form.append('file', new Blob([Buffer.from('firmware')]), 'fw.bin');
    return { type: '', content: form };
  }
  if (!content['application/json']) return { type: 'text/plain', content: 'night shift' };
  return { type: 'application/json', content: JSON.stringify(body) };
}

/** Returns the slots of a call, found with entities whose values are all the same. */
function usedSlots(request: MatrixCall['request']): Slot[] {
  const things = Object.fromEntries(slots.map((slot) => [slot, 'x'])) as Things;
  const person = { id: 'x', email: 'x', password: 'x', token: 'x' };
  const entities: NamedEntities = {
    missing: things,
    things: { c1: things, c2: things, public: things, shared: things, b: things },
    admins: { a: person, b: person, system: 'x' },
    customerUser: person,
    made: new Map([['x', { id: 'x', userId: 'x', credentials: { id: 'x' } }]]),
  };
  const used = new Set<Slot>();
  const value: ValueOf = (slot) => {
    used.add(slot);
    return 'x';
  };
  request(value, entities, { role: 'tenant', credentials: '', userId: 'x', apiKeyId: 'x', password: 'x' });
  return [...used];
}
