/**
 * The API document and the API are one: every operation is called with valid and invalid input made of its schemas, and
 * each answer is one that the document names, member by member. A failure names the seed. `npm test` sends some of the
 * invalid inputs of each operation, `npm run test:long` all of them.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { get } from 'node:http';
import { beforeAll, describe, expect, test } from 'vitest';
import {
  type Document,
  mismatch,
  type Operation,
  operationsOf,
  resolved,
  type Schema,
  someValue,
  wrongValueOf,
} from '../../harness/openapi.ts';
import { newTenant, newUser, ok, type Person, systemAdminToken } from '../../harness/people.ts';
import { Random } from '../../harness/random.ts';
import { receiptOf } from '../../harness/receipts.ts';
import { analyticsUrl, saveView } from '../../harness/reports.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const seed = Number(process.env['OPENAPI_SEED'] ?? 20_261_120);
const sendsAll = process.env['OPENAPI_INPUTS'] === 'all';
const wrongParametersMax = 1;
const wrongBodiesMax = 2;
const api = sharedEngine();
const document = (await (await fetch(`${api.http}/v3/api-docs/thingsboard`)).json()) as Document;
const operations = operationsOf(document);

type Role = 'SYS_ADMIN' | 'TENANT_ADMIN' | 'CUSTOMER_USER' | 'GUEST';
const roles: Role[] = ['SYS_ADMIN', 'TENANT_ADMIN', 'CUSTOMER_USER', 'GUEST'];

interface Setup {
  admin: Person;
  tenantId: string;
  customerId: string;
  customerUser: Person;
  guestToken: string;
  systemToken: string;
}

let setup: Setup;

beforeAll(async () => {
  const systemToken = await systemAdminToken();
  const { id: tenantId, admin } = await newTenant();
  const customer = await ok('POST', '/api/customer', { title: `customer-${randomUUID()}` }, admin.token);
  const customerUser = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, api, admin.token);
  const open = await newDevice(admin.token);
  const assigned = await ok('POST', `/api/customer/public/device/${open.id}`, undefined, admin.token);
  const guest = await ok('POST', '/api/auth/login/public', { publicId: assigned.customerId.id }, '');
  setup = { admin, tenantId, customerId: customer.id.id, customerUser, guestToken: guest.token, systemToken };
});

test('a summary is plain text, because pages show it as it is', () => {
  expect(/"summary":"[^"]*`/.exec(JSON.stringify(document.paths))).toBeNull();
});

async function newDevice(token: string): Promise<{ id: string; name: string }> {
  const name = `device-${randomUUID()}`;
  const device = await ok('POST', '/api/device', { name }, token);
  return { id: device.id.id, name };
}

function rolesOf({ security, description }: Operation): Role[] | 'public' {
  if (security.length === 0) return 'public';
  return /Open to: ([A-Z_, ]+)\./.exec(description)![1]!.split(', ') as Role[];
}

function tokenOf(role: Role): string {
  switch (role) {
    case 'SYS_ADMIN':
      return setup.systemToken;
    case 'TENANT_ADMIN':
      return setup.admin.token;
    case 'CUSTOMER_USER':
      return setup.customerUser.token;
    case 'GUEST':
      return setup.guestToken;
  }
}

/** Operations that end no session. */
async function callerOf(operation: Operation): Promise<string> {
  const open = rolesOf(operation);
  if (open === 'public') return '';
  const role = open.includes('TENANT_ADMIN') ? 'TENANT_ADMIN' : open[0]!;
  if (!/logout|changePassword/.test(operation.path)) return tokenOf(role);
  return (await api.login(setup.admin.email, setup.admin.password)).token;
}

/** Returns the document for a reader who uses the address `host`. Does not use fetch, which sets that header itself. */
function askAs(host: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const request = get(`${api.http}/v3/api-docs/thingsboard`, { headers: { host } }, async (response) => {
      resolve(Buffer.concat(await response.toArray()).toString());
    });
    request.on('error', reject);
  });
}

type Values = Record<string, string>;

/** Returns valid values for the path: entities of this operation alone, so that no other operation changes them. */
async function pathValues({ path, method }: Operation): Promise<Values> {
  const { admin, customerId, tenantId } = setup;
  const device = await newDevice(admin.token);
  if (method === 'DELETE' && path.startsWith('/api/customer/device')) {
    await ok('POST', `/api/customer/${customerId}/device/${device.id}`, undefined, admin.token);
  }
  const values: Values = { deviceId: device.id, deviceName: device.name, entityId: device.id, entityType: 'DEVICE' };
  Object.assign(values, {
    enabled: 'true',
    scope: 'SERVER_SCOPE',
    seriesScope: 'ANY',
    ttlSeconds: '0',
    requestId: '1',
  });
  Object.assign(values, { customerId, tenantId, otaPackageType: 'FIRMWARE', userId: setup.customerUser.id });
  const asks = (name: string) => path.includes(`{${name}}`);
  if (asks('deviceToken')) {
    values['deviceToken'] = (
      await ok('GET', `/api/device/${device.id}/credentials`, undefined, admin.token)
    ).credentialsId;
  }
  if (asks('profileId')) {
    const name = `profile-${randomUUID()}`;
    values['profileId'] = (await ok('POST', '/api/deviceProfile', { name }, admin.token)).id.id;
  }
  if (asks('tenantProfileId')) {
    const { id } = await ok('POST', '/api/tenantProfile', { name: `profile-${randomUUID()}` }, setup.systemToken);
    values['tenantProfileId'] = id.id;
  }
  if (asks('customerId') && method === 'DELETE') {
    values['customerId'] = (await ok('POST', '/api/customer', { title: randomUUID() }, admin.token)).id.id;
  }
  if (asks('tenantId') && method === 'DELETE') values['tenantId'] = (await newTenant()).id;
  if (asks('userId') && /DELETE|activationLink|userCredentialsEnabled/.test(method + path)) {
    const user = { email: `${randomUUID()}@orchard.example`, authority: 'TENANT_ADMIN' };
    values['userId'] = (await ok('POST', '/api/user?sendActivationMail=false', user, admin.token)).id.id;
  }
  if (asks('apiKeyId')) {
    const key = { userId: { entityType: 'USER', id: admin.id }, description: 'walk', enabled: true };
    values['apiKeyId'] = (await ok('POST', '/api/apiKey', key, admin.token)).id.id;
  }
  if (asks('rpcId')) {
    const command = { method: 'walk', persistent: true };
    values['rpcId'] = (await ok('POST', `/api/rpc/oneway/${device.id}`, command, admin.token)).rpcId;
  }
  if (asks('receipt')) {
    const { credentialsId } = await ok('GET', `/api/device/${device.id}/credentials`, undefined, admin.token);
    values['receipt'] = await receiptOf(credentialsId);
  }
  if (asks('viewId')) values['viewId'] = await saveView(someView(), { token: admin.token });
  if (asks('otaPackageId')) {
    const described = { type: 'FIRMWARE', title: randomUUID(), version: '1' };
    const { id } = await ok('POST', '/api/otaPackage', described, admin.token);
    values['otaPackageId'] = id.id;
    if (path.endsWith('/download')) {
      const form = new FormData();
      form.append('file', new Blob([Buffer.from('firmware')]), 'fw.bin');
      await fetch(`${api.http}/api/otaPackage/${id.id}?checksumAlgorithm=MD5`, {
        method: 'POST',
        headers: { 'x-authorization': `Bearer ${admin.token}` },
        body: form,
      });
    }
  }
  return values;
}

const someView = () => ({
  name: randomUUID(),
  fields: [{ label: 'n', role: 'ROW', source: 'ENTITY_FIELD', key: 'name' }],
});

/** Valid queries and bodies, for schemas whose random values would rarely be valid. */
async function hints({ method, path }: Operation): Promise<{ query?: Values; body?: unknown }> {
  const name = `walk-${randomUUID()}`;
  const email = `${name}@orchard.example`;
  const { admin } = setup;
  const userId = { entityType: 'USER', id: setup.admin.id };
  const byOperation: Record<string, { query?: Values; body?: unknown }> = {
    'POST /api/auth/login': { body: { username: admin.email, password: admin.password } },
    'POST /api/auth/changePassword': { body: { currentPassword: 'not it', newPassword: 'pear-tree-8' } },
    'POST /api/user': { query: { sendActivationMail: 'false' }, body: { email, authority: 'TENANT_ADMIN' } },
    'POST /api/apiKey': { body: { userId, description: 'walk', enabled: true } },
    'POST /api/tenant': { body: { title: name } },
    'POST /api/tenantProfile': { body: { name } },
    'POST /api/customer': { body: { title: name } },
    'POST /api/device': { body: { name } },
    'POST /api/devices/bulk': { body: { devices: [{ name }, { name: `${name}-2`, accessToken: name }] } },
    'POST /api/device-with-credentials': {
      body: { device: { name }, credentials: { credentialsType: 'ACCESS_TOKEN', credentialsId: name } },
    },
    'POST /api/deviceProfile': { body: { name } },
    'POST /api/otaPackage': { body: { type: 'FIRMWARE', title: name, version: '1' } },
    'POST /api/otaPackage/{otaPackageId}': { query: { checksumAlgorithm: 'SHA256' } },
    'POST /api/noauth/resetPasswordByEmail': { body: { email } },
    'POST /api/devices': {
      body: { parameters: { rootId: setup.tenantId, rootType: 'TENANT', direction: 'FROM' }, deviceTypes: ['default'] },
    },
    'POST /api/entitiesQuery/find': {
      body: { entityFilter: { type: 'entityType', entityType: 'DEVICE' }, pageLink: { page: 0, pageSize: 10 } },
    },
    'POST /api/entitiesQuery/count': { body: { entityFilter: { type: 'entityType', entityType: 'DEVICE' } } },
    'POST /apiAnalytics/publicApi/auth/login': { body: { username: admin.email, password: admin.password } },
    'POST /apiTrendz/publicApi/auth/login': { body: { username: admin.email, password: admin.password } },
    'POST /apiAnalytics/view': { body: someView() },
    'POST /apiAnalytics/view/preview': { body: someView() },
    'POST /api/device/bulk_import': { body: { file: name, mapping: { columns: [{ type: 'NAME' }] } } },
  };
  if (/^\/api\/(v2\/)?relation$/.test(path)) {
    const from = { entityType: 'TENANT', id: setup.tenantId };
    const to = { entityType: 'DEVICE', id: (await newDevice(admin.token)).id };
    const body = { from, to, type: 'Contains' };
    if (method === 'POST') return { body };
    await ok('POST', '/api/relation', body, admin.token);
    const ends = { fromId: from.id, fromType: from.entityType, toId: to.id, toType: to.entityType };
    return { query: { ...ends, relationType: 'Contains' } };
  }
  if (path.endsWith('/buildReport')) return { body: { viewConfigId: await saveView(someView(), admin) } };
  const known = byOperation[`${method} ${path}`];
  if (known) return known;
  if (/^\/api\/(plugins\/)?rpc\//.test(path) && method === 'POST')
    return { body: { method: 'walk', persistent: true } };
  if (path.endsWith('/rpc') && method === 'POST') return { body: { method: 'walk', params: {} } };
  if (path.endsWith('/updates') || path.endsWith('/rpc')) return { query: { timeout: '1' } };
  if (path.endsWith('/completeness')) return { query: { keys: 'k', startTs: '0', endTs: '9' } };
  if (path.startsWith('/api/plugins/telemetry'))
    return { query: { keys: 'k', startTs: '0', endTs: '9' }, body: { k: 1 } };
  if (path === '/api/tenant/device') return { query: { deviceName: (await newDevice(admin.token)).name } };
  if (path === '/api/tenant/customers') {
    await ok('POST', '/api/customer', { title: name }, admin.token);
    return { query: { customerTitle: name } };
  }
  if (['/api/tenant/devices', '/api/deviceProfileInfos'].includes(path))
    return { query: { pageSize: '10', page: '0' } };
  if (path.startsWith('/api/v1') && /telemetry|attributes/.test(path)) return { body: { k: 1 } };
  if (path === '/api/relations' && method === 'DELETE')
    return { query: { entityId: (await newDevice(admin.token)).id, entityType: 'DEVICE' } };
  if (['/api/relations', '/api/relations/info'].includes(path))
    return { query: { fromId: randomUUID(), fromType: 'ASSET' } };
  if (path === '/api/v1/provision') return { body: { provisionDeviceKey: 'a', provisionDeviceSecret: 'b' } };
  return {};
}

interface Sent {
  status: number;
  text: string;
}

/** Makes one call and checks that the document names the answer. */
async function call(
  operation: Operation,
  path: Values,
  query: URLSearchParams,
  body: { type: string; content: string | Buffer | FormData } | undefined,
  token: string,
): Promise<Sent> {
  const url = operation.path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(path[name]!));
  const response = await fetch(`${operation.server ?? api.http}${url}?${query}`, {
    method: operation.method,
    headers: {
      ...(token && { 'x-authorization': `Bearer ${token}` }),
      ...(body && typeof body.type === 'string' && body.type !== '' && { 'content-type': body.type }),
    },
    ...(body && { body: body.content as string }),
    signal: AbortSignal.timeout(25_000),
  });
  const text = await response.text();
  const type = response.headers.get('content-type') ?? '';
  const sentence = `seed ${seed}: ${operation.method} ${url}?${query} ${body ? String(body.content).slice(0, 500) : ''}\n${response.status} ${text.slice(0, 500)}`;
  expect(mismatch(document, operation, response.status, type, text), sentence).toBe('');
  if (response.status === 500) expect(operation.responses, sentence).toHaveProperty('500');
  return { status: response.status, text };
}

const jsonBody = (value: unknown) => ({ type: 'application/json', content: JSON.stringify(value) });

function bodySchema({ requestBody }: Operation): Schema | undefined {
  const schema = requestBody?.content['application/json']?.schema;
  return schema && resolved(document, schema);
}

function rightBody(operation: Operation, body: unknown): Parameters<typeof call>[3] {
  const { requestBody } = operation;
  if (!requestBody) return undefined;
  if (requestBody.content['multipart/form-data']) {
    const form = new FormData();
    form.append('file', new Blob([Buffer.from('firmware')]), 'fw.bin');
    return { type: '', content: form };
  }
  if (!requestBody.content['application/json']) return { type: 'text/plain', content: 'night shift' };
  return jsonBody(body ?? someValue(document, bodySchema(operation)!, new Random(seed)));
}

const requiredQuery = (operation: Operation) =>
  operation.parameters.filter((each) => each.in === 'query' && each.required);

function queryOf(operation: Operation, given: Values = {}): URLSearchParams {
  const query = new URLSearchParams(given);
  for (const { name, schema } of requiredQuery(operation)) {
    if (query.has(name)) continue;
    query.set(name, String(someValue(document, schema, new Random(seed))) || 'x');
  }
  return query;
}

/** Operations that cannot succeed with the values of this test. Other tests cover their success. */
const refusedHere = new Set([
  'POST /api/auth/login/public',
  'POST /api/auth/token',
  'POST /api/auth/changePassword',
  'POST /api/noauth/activate',
  'POST /api/noauth/resetPassword',
  'POST /api/deviceProfile/{profileId}/issuerProof',
  'POST /api/device/credentials',
  'POST /api/customer/device/{deviceName}/claim',
  'GET /api/v1/{deviceToken}/attributes/updates',
  'GET /api/v1/{deviceToken}/rpc',
  'POST /api/v1/{deviceToken}/rpc',
  'GET /api/v1/{deviceToken}/firmware',
  'GET /api/v1/{deviceToken}/software',
]);

describe('the document', () => {
  test('is OpenAPI 3.1 of a platform with API keys', async () => {
    expect(document.openapi).toMatch(/^3\.1\./);
    const { version, millraceVersion } = await ok('GET', '/api/system/info');
    const [major, minor] = version.split('.').map(Number) as [number, number];
    expect(major * 100 + minor).toBeGreaterThanOrEqual(403);
    const { version: own } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };
    expect([document.info.version, millraceVersion]).toEqual([own, own]);
    const config = await ok('GET', '/v3/api-docs/swagger-config', undefined, '');
    expect(config.urls).toEqual([{ url: '/v3/api-docs/thingsboard', name: 'thingsboard' }]);
    expect(document.components.securitySchemes['ApiKeyForm']).toMatchObject({ in: 'header', name: 'X-Authorization' });
    expect(document.components.securitySchemes['HttpLoginForm']).toMatchObject({
      in: 'header',
      name: 'X-Authorization',
    });
  });

  test('names every operation once, and its allowed callers', () => {
    const openPaths =
      /^\/api\/(noauth|v1|auth\/(login|token)|device-connectivity\/mqtts)|^\/v3\/|\/publicApi\/auth\/login$/;
    expect(new Set(operations.map(({ operationId }) => operationId)).size).toBe(operations.length);
    for (const { path, security, operationId } of operations) {
      const isOpen = openPaths.test(path);
      const isReport = path.endsWith('/buildReport');
      const schemes = isReport ? [{ HttpLoginForm: [] }] : [{ ApiKeyForm: [] }, { HttpLoginForm: [] }];
      expect(security, operationId).toEqual(isOpen ? [] : schemes);
    }
    const signIns = operations.filter(({ tags, security }) => tags.includes('login-endpoint') && security.length === 0);
    expect(signIns.map(({ deprecated }) => deprecated)).toEqual([true, true, true]);
  });

  test('names the port of reports, at the host that its reader asked', async () => {
    const isElsewhere = ({ path }: Operation) => /^\/api(Analytics|Trendz)\//.test(path);
    const reports = operations.filter(isElsewhere);
    expect(reports.map(({ method, path }) => `${method} ${path}`).sort()).toEqual([
      'DELETE /apiAnalytics/view/{viewId}',
      'GET /apiAnalytics/view/{viewId}',
      'GET /apiAnalytics/views',
      'POST /apiAnalytics/publicApi/auth/login',
      'POST /apiAnalytics/publicApi/buildReport',
      'POST /apiAnalytics/view',
      'POST /apiAnalytics/view/preview',
      'POST /apiTrendz/publicApi/auth/login',
      'POST /apiTrendz/publicApi/buildReport',
    ]);
    expect(new Set(reports.map(({ server }) => server))).toEqual(new Set([analyticsUrl()]));
    expect(operations.filter((each) => !isElsewhere(each) && each.server !== undefined)).toEqual([]);
    const { port, host } = new URL(analyticsUrl());
    for (const [asked, expected] of [
      ['farm.example:8080', `http://farm.example:${port}`],
      ['[::1]:8080', `http://[::1]:${port}`],
      ['"><script>', `http://localhost:${port}`],
    ]) {
      const raw = await askAs(asked!);
      const [{ server } = { server: '' }] = operationsOf(JSON.parse(raw) as Document).filter(isElsewhere);
      expect(server).toBe(expected);
      expect(raw.replaceAll(new URL(expected!).host, host)).toBe(JSON.stringify(document));
    }
  });

  test('leaves no answer open', () => {
    const open: string[] = [];
    const look = (schema: Schema, where: string): void => {
      if (schema.$ref) return;
      if (schema.type === 'object' && schema.properties && schema.additionalProperties !== false) open.push(where);
      // Values that a user has saved may have any form, but their description has to say so.
      const isAnything = Object.keys(schema).every((name) => name === 'description');
      if (isAnything && !schema.description && !where.includes('device-api')) open.push(where);
      for (const [name, each] of Object.entries(schema.properties ?? {})) look(each, `${where}.${name}`);
      for (const each of schema.anyOf ?? []) look(each, where);
      if (schema.items) look(schema.items, `${where}[]`);
    };
    for (const [name, schema] of Object.entries(document.components.schemas)) look(schema, name);
    for (const { operationId, responses, tags } of operations) {
      for (const [status, { content = {} }] of Object.entries(responses)) {
        for (const { schema } of Object.values(content)) look(schema, `${tags[0]} ${operationId} ${status}`);
      }
    }
    expect(open).toEqual([]);
  });
});

describe('the document shows', () => {
  test('a type of every parameter', () => {
    const typed = (given: Schema): boolean => {
      const { type, anyOf } = resolved(document, given);
      return anyOf ? anyOf.every(typed) : type !== undefined;
    };
    const any = operations.flatMap(({ operationId, parameters }) =>
      parameters.filter(({ schema }) => !typed(schema)).map(({ name }) => `${operationId} ${name}`),
    );
    expect(any).toEqual([]);
  });

  test('an example of every JSON answer, which its schema accepts', () => {
    const wrong = operations.flatMap((operation) => {
      const media = operation.responses['200']?.content?.['application/json'] as { example?: unknown } | undefined;
      if (!media) return [];
      const text = JSON.stringify(media.example) ?? '';
      const fault = text === '' ? 'none' : mismatch(document, operation, 200, 'application/json', text);
      return fault !== '' || /\{\}/.test(text) ? [`${operation.operationId}: ${fault} ${text}`] : [];
    });
    expect(wrong).toEqual([]);
  });
});

describe('every operation', () => {
  test.each(operations.map((operation) => [`${operation.method} ${operation.path}`, operation] as const))(
    '%s answers as the document says',
    async (name, operation) => {
      const random = new Random(seed + operations.indexOf(operation));
      const path = await pathValues(operation);
      const { query, body } = await hints(operation);
      const token = await callerOf(operation);
      const right = () => queryOf(operation, query);

      // Refused calls come before those that end sessions and entities.
      const open = rolesOf(operation);
      if (open !== 'public') {
        const unknown = operation.tags.includes('reports') ? 403 : 401;
        expect((await call(operation, path, right(), rightBody(operation, body), '')).status).toBe(unknown);
        for (const role of roles.filter((each) => !open.includes(each))) {
          const refused = await call(operation, path, right(), rightBody(operation, body), tokenOf(role));
          expect(refused.status, `${role} ${refused.text}`).toBe(403);
        }
      }

      // Each of these calls has one invalid value.
      const mayBeWrong = operation.parameters.filter(
        ({ schema, in: place, required }) => wrongText(schema) !== undefined || (place === 'query' && required),
      );
      for (const parameter of someOf(mayBeWrong, wrongParametersMax, random)) {
        const wrong = wrongText(parameter.schema);
        const [wrongPath, wrongQuery] = [{ ...path }, right()];
        if (wrong === undefined) wrongQuery.delete(parameter.name);
        else if (parameter.in === 'path') wrongPath[parameter.name] = wrong;
        else wrongQuery.set(parameter.name, wrong);
        const refused = await call(operation, wrongPath, wrongQuery, rightBody(operation, body), token);
        expect(refused.status, `${parameter.name}: ${refused.text}`).toBe(400);
      }
      for (const wrong of someOf(wrongBodies(operation, body), wrongBodiesMax, random)) {
        const refused = await call(operation, path, right(), wrong.body, token);
        const sentence = `${wrong.what}: ${refused.status} ${refused.text}`;
        // The device API answers none of these inputs with 401 or 415, and any JSON is a valid reply to a command.
        const isDevice = operation.tags.includes('device-api');
        expect(isDevice ? [200, 400, 408] : [400, 401, 415], sentence).toContain(refused.status);
        if (wrong.member && refused.status === 400 && !isDevice) expect(refused.text, sentence).toContain(wrong.member);
      }

      // Requests that match the schemas may have any documented outcome.
      const answers: Sent[] = [];
      for (let i = 0; i < (sendsAll ? 4 : 1); i += 1) {
        const some = queryOf(operation, query);
        for (const { name: each, in: place, schema } of operation.parameters) {
          if (place === 'query' && !query?.[each] && random.next() < 0.5) {
            some.set(each, String(someValue(document, schema, random)));
          }
        }
        const schema = bodySchema(operation);
        const isSlow = operation.tags.includes('rpc');
        const made = schema && someValue(document, schema, random);
        const content = schema && (isSlow ? { ...(made as object), expirationTime: 1, persistent: true } : made);
        if (operation.method === 'DELETE') break;
        answers.push(await call(operation, path, some, schema ? jsonBody(content) : rightBody(operation, body), token));
      }

      answers.push(await call(operation, path, right(), rightBody(operation, body), token));
      const sentence = answers.map(({ status, text }) => `${status} ${text}`).join('\n');
      if (!refusedHere.has(name))
        expect(
          answers.some(({ status }) => status === 200),
          sentence,
        ).toBe(true);
    },
  );
});

/** Returns all inputs when the run sends all, otherwise `countMax` of them, chosen by the seed. */
function someOf<T>(all: readonly T[], countMax: number, random: Random): T[] {
  const left = [...all];
  if (sendsAll) return left;
  return Array.from({ length: Math.min(countMax, left.length) }, () => left.splice(random.below(left.length), 1)[0]!);
}

function wrongText(given: Schema): string | undefined {
  const schema = resolved(document, given);
  if (schema.enum) return 'NO_SUCH_WORD';
  if (schema.type === 'array') return wrongText(schema.items!);
  if (schema.format === 'uuid') return '123';
  if (schema.type === 'boolean') return 'perhaps';
  return schema.type === 'integer' ? '1.5' : undefined;
}

function wrongBodies(
  operation: Operation,
  hint: unknown,
): { what: string; body: { type: string; content: string }; member?: string }[] {
  const schema = bodySchema(operation);
  if (!schema) return [];
  const required = operation.requestBody!.required;
  const right = (hint ?? someValue(document, schema, new Random(seed))) as Record<string, unknown>;
  const json = (content: string) => ({ type: 'application/json', content });
  const wrong: { what: string; body: { type: string; content: string }; member?: string }[] = [
    { what: 'no JSON', body: json('{"name":') },
    { what: 'too deep', body: json(`{"additionalInfo":${'['.repeat(5_000)}${']'.repeat(5_000)}}`) },
  ];
  if (required) wrong.push({ what: 'nothing', body: json('') });
  if (resolved(document, schema).type === 'object' && schema.properties) {
    for (const [member, each] of Object.entries(schema.properties)) {
      const value = wrongValueOf(document, each);
      if (value === undefined) continue;
      wrong.push({
        what: `${member} of a wrong type`,
        body: json(JSON.stringify({ ...right, [member]: value })),
        member,
      });
      const hasText = JSON.stringify(each).includes('"string"') && !JSON.stringify(each).includes('"object"');
      if (!hasText) continue;
      for (const text of ['a\\u0000b', '\\ud800']) {
        const rest = JSON.stringify({ ...right, [member]: '?' });
        wrong.push({
          what: `${member} with ${text}`,
          body: json(rest.replace(`"${member}":"?"`, `"${member}":"${text}"`)),
          member,
        });
      }
    }
    for (const member of schema.required ?? []) {
      wrong.push({ what: `no ${member}`, body: json(JSON.stringify({ ...right, [member]: undefined })), member });
    }
  }
  return wrong;
}
