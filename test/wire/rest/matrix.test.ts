/**
 * Role × operation × ownership: every operation of the API document is called by every role, for entities of its own,
 * of another customer, of another tenant and for missing ones, and without credentials. `matrix-rules.ts` has the
 * expected answers. A refusal reveals nothing: another tenant's entity and a missing one get the same answer. A refused
 * write changes nothing.
 */
import { beforeAll, describe, expect, test, vi } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { callsOf, type MatrixCall, type ValueOf } from '../../harness/matrix-calls.ts';
import { type Caller, type CallerName, MatrixEntities, type Slot } from '../../harness/matrix-entities.ts';
import { expected, isListed, type Ownership, type Rule, table, type Word } from '../../harness/matrix-rules.ts';
import { type Document, operationsOf, resolved, type Schema } from '../../harness/openapi.ts';
import { ok } from '../../harness/people.ts';
import { good } from '../../harness/reports.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const api = sharedEngine();
const document = (await (await fetch(`${api.http}/v3/api-docs/thingsboard`)).json()) as Document;
const calls = operationsOf(document).flatMap((operation) => callsOf(document, operation));
const tags = [...new Set(calls.map(({ operation }) => operation.tags[0]!))];
const callsOfTag = (tag: string) => calls.filter(({ operation }) => operation.tags[0] === tag);

/** Allowed calls that cannot succeed with what the matrix sends. The answer is that of the operation, not of a rule. */
const otherAnswers: Record<string, number[]> = {
  'POST /api/auth/login/public': [401],
  'POST /api/auth/token': [401],
  'POST /api/auth/changePassword': [400],
  'POST /api/noauth/activate': [400],
  'POST /api/noauth/resetPassword': [400],
  // Each of these three succeeds either for a user who is activated or for one who is not.
  'GET /api/user/{userId}/activationLink': [200, 400],
  'GET /api/user/{userId}/activationLinkInfo': [200, 400],
  'POST /api/user/{userId}/resetPasswordLink': [200, 400],
  'GET /api/user/{userId}/token': [200, 401],
  'POST /api/deviceProfile/{profileId}/issuerProof': [400],
  // Two devices without a relation; relations.test.ts reads one.
  'GET /api/relation': [404],
  'GET /api/v1/{deviceToken}/attributes/updates': [408],
  'GET /api/v1/{deviceToken}/rpc': [200, 408],
  'POST /api/v1/{deviceToken}/rpc': [200, 400, 408],
  'GET /api/v1/{deviceToken}/firmware': [404],
  'GET /api/v1/{deviceToken}/software': [404],
};

/** Operations that write but keep the entity that they name, so the next call needs no new one. */
const keepsEntities =
  /^POST \/(api\/(devices|entitiesQuery\/.*|user\/\{userId\}\/resetPasswordLink|rpc\/.*|plugins\/.*|v1\/.*|auth\/.*|noauth\/.*)|api(Analytics|Trendz)\/publicApi\/.*)$/;
const endsSessions = /logout|changePassword/;

let entities: MatrixEntities;
let before: Record<string, string>;

beforeAll(async () => {
  entities = await MatrixEntities.build();
  await upload(entities.things.c1.otaPackageId);
  await eventually(sendersAreActive);
  before = await snapshot();
});

/** True when each device that has sent is shown as active, which takes a moment. */
async function sendersAreActive(): Promise<boolean> {
  const { a, b } = entities.admins;
  const path = '/api/tenant/deviceInfos?pageSize=1000&page=0';
  const lists = await Promise.all([a, b].map(({ token }) => ok('GET', path, undefined, token)));
  const active = new Set(lists.flatMap(({ data }) => data).flatMap((info) => (info.active ? [info.id.id] : [])));
  return Object.values(entities.things).every(({ deviceId }) => active.has(deviceId));
}

function ruleOf({ name }: MatrixCall): Rule {
  const rule = table.find(({ fits }) => fits(name));
  if (!rule) throw new Error(`${name}: no row of the rules says who may call it`);
  return rule;
}

interface Answer {
  status: number;
  text: string;
}

async function send(
  call: MatrixCall,
  caller: Caller | undefined,
  credentials: string,
  value: ValueOf,
): Promise<Answer> {
  const used = new Map<string, Slot>();
  const noted: ValueOf = (slot) => {
    const text = value(slot);
    used.set(text, slot);
    return text;
  };
  const { url, body } = call.request(noted, entities, caller ?? entities.callers.tenant);
  const response = await fetch(`${call.operation.server ?? api.http}${url}`, {
    method: call.operation.method,
    headers: {
      ...(credentials && { 'x-authorization': credentials }),
      ...(body?.type && { 'content-type': body.type }),
    },
    ...(body && { body: body.content }),
    signal: AbortSignal.timeout(25_000),
  });
  let text = await response.text();
  for (const [each, slot] of used) text = text.replaceAll(each, `<${slot}>`);
  return { status: response.status, text: text.replace(/"timestamp":\d+/, '"timestamp":0') };
}

const everyOwnership: readonly Ownership[] = ['self', 'own', 'other', 'shared', 'foreign', 'missing'];

/**
 * Returns the ownerships to try. An administrator has no customer, and an API key acts for its user, so fewer suffice
 * for these.
 */
function ownershipsFor(name: CallerName, word: Word): readonly Ownership[] {
  if (word === '-') return ['own'];
  if (name === 'tenant') return ['self', 'own', 'shared', 'foreign', 'missing'];
  if (name === 'customer with an API key') return word === 'self' ? ['self', 'foreign'] : ['own', 'other', 'foreign'];
  return everyOwnership;
}

/** Reports are made only for users who signed in; API keys may read the views only. */
const refusesKeys = /\/buildReport$/;

/** A cell of the matrix: an entity in one slot of the call, and entities of the caller in all other slots. */
interface Cell {
  slot: Slot | undefined;
  whose: Ownership;
  expected: ReturnType<typeof expected>;
}

function cellsOf(call: MatrixCall, rule: Word, name: CallerName): Cell[] {
  const caller = entities.callers[name];
  const { role } = caller;
  const word = name === 'customer with an API key' && refusesKeys.test(call.name) ? '-' : rule;
  if (call.slots.length === 0) return [{ slot: undefined, whose: 'own', expected: expected(word, role, 'own', false) }];
  const own = entities.thingsOf(caller, 'own');
  return call.slots.flatMap((slot) =>
    ownershipsFor(name, word).flatMap((whose) => {
      const id = entities.thingsOf(caller, whose)[slot];
      if (whose !== 'own' && id === own[slot]) return [];
      if (whose === 'self' && role === 'guest') return [];
      return [{ slot, whose, expected: expected(word, role, whose, entities.isAdmin(id)) }];
    }),
  );
}

function valuesOf(caller: Caller, { slot, whose }: Cell): ValueOf {
  const isWholeSelf = whose === 'self';
  return (asked) => entities.thingsOf(caller, asked === slot || isWholeSelf ? whose : 'own')[asked];
}

const callerNames: CallerName[] = ['system', 'tenant', 'customer', 'customer with an API key', 'guest'];

/** Reads, as administrators, everything that a refused call could have changed. */
async function snapshot(): Promise<Record<string, string>> {
  const paths: [string, string][] = [];
  const views: string[] = [];
  const { a, b, system } = entities.admins;
  for (const [admin, places] of [
    [a, ['c1', 'c2', 'public', 'shared']],
    [b, ['b']],
  ] as const) {
    const lists = [
      'tenant/deviceInfos',
      'customers',
      'users',
      'deviceProfiles',
      'otaPackages',
      'deviceProfile/issuers',
    ];
    for (const list of lists) paths.push([`/api/${list}?pageSize=1000&page=0`, admin.token]);
    views.push(JSON.stringify(await good('GET', '/apiAnalytics/views?pageSize=1000&page=0', undefined, admin)));
    const values = new Set<string>();
    for (const place of places) {
      const { deviceId, peerId, customerId, tenantId, userId, profileId } = entities.things[place];
      for (const id of [deviceId, peerId]) {
        values.add(`DEVICE/${id}`);
        paths.push([`/api/device/${id}/credentials`, admin.token]);
        paths.push([`/api/rpc/persistent/device/${id}?pageSize=100&page=0`, admin.token]);
        paths.push([`/api/relations?fromId=${id}&fromType=DEVICE`, admin.token]);
      }
      for (const each of [`CUSTOMER/${customerId}`, `TENANT/${tenantId}`, `USER/${userId}`]) values.add(each);
      values.add(`DEVICE_PROFILE/${profileId}`);
      paths.push([`/api/user/${userId}`, admin.token], [`/api/apiKeys/${userId}?pageSize=100&page=0`, admin.token]);
      paths.push([`/api/tenant/${tenantId}`, system]);
    }
    for (const each of values) {
      paths.push([`/api/plugins/telemetry/${each}/values/attributes`, admin.token]);
      paths.push([`/api/plugins/telemetry/${each}/values/timeseries`, admin.token]);
    }
  }
  const { customerUser } = entities;
  paths.push(
    [`/api/user/${customerUser.id}`, a.token],
    [`/api/apiKeys/${customerUser.id}?pageSize=100&page=0`, a.token],
  );
  paths.push(['/api/tenants?pageSize=100&page=0&textSearch=made-by-matrix', system]);
  const seen: Record<string, string> = { views: views.join() };
  await inTurns([...new Map(paths.map((each) => [each[0], each]))], async ([path, [, token]]) => {
    const text: unknown = await ok('GET', path, undefined, token);
    // Sign-ins of the callers change this member and do not count.
    seen[path] = JSON.stringify(text).replace(/"lastLoginTs":\d+/, '');
  });
  return seen;
}

/** Does the work for all items, a few at once. */
async function inTurns<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const rest = items.values();
  const turn = async () => {
    for (const item of rest) await work(item);
  };
  await Promise.all(Array.from({ length: 6 }, turn));
}

async function upload(packageId: string): Promise<void> {
  const form = new FormData();
  form.append('file', new Blob([Buffer.from('firmware')]), 'fw.bin');
  const response = await fetch(`${api.http}/api/otaPackage/${packageId}?checksumAlgorithm=MD5`, {
    method: 'POST',
    headers: { 'x-authorization': entities.callers.tenant.credentials },
    body: form,
  });
  expect(response.status, await response.text()).toBe(200);
}

test('every operation has a row, and every row is needed', () => {
  const rules = calls.map(ruleOf);
  expect(table.filter((rule) => !rules.includes(rule)).map(({ text }) => text)).toEqual([]);
});

describe('what is refused', () => {
  test.each(tags)('%s', { retry: 0 }, async (tag) => {
    const faults: string[] = [];
    await inTurns(callsOfTag(tag), async (call) => {
      const { of } = ruleOf(call);
      for (const name of callerNames) {
        const caller = entities.callers[name];
        const word = of[caller.role];
        if (word === 'public' || word === 'token') continue;
        const missing = new Map<Slot | undefined, string>();
        const cells = cellsOf(call, word, name).filter((cell) => cell.expected !== 200);
        for (const cell of cells.toReversed()) {
          const answer = await send(call, caller, caller.credentials, valuesOf(caller, cell));
          const line = `${call.name} by ${name} for ${cell.slot} (${cell.whose}): ${answer.status} ${answer.text.slice(0, 200)}`;
          if (answer.status !== cell.expected) faults.push(`not ${cell.expected}: ${line}`);
          if (entities.hiddenFrom(caller).some((word) => answer.text.includes(word))) faults.push(`tells: ${line}`);
          if (cell.whose === 'missing') missing.set(cell.slot, answer.text);
          const known = missing.get(cell.slot);
          const isLikeMissing = cell.expected === 404 && known !== undefined;
          if (isLikeMissing && answer.text !== known) faults.push(`not as a missing one: ${line}, missing: ${known}`);
        }
      }
      const own = (slot: Slot) => entities.things.c1[slot];
      const nobody: [string, string][] = [['nobody', '']];
      if (of.tenant !== 'public' && of.tenant !== 'token') nobody.push(['a device', `Bearer ${own('deviceToken')}`]);
      for (const [name, credentials] of nobody) {
        if (of.tenant === 'public') continue;
        const value: ValueOf = of.tenant === 'token' ? (slot) => entities.missing[slot] : own;
        const { status, text } = await send(call, undefined, credentials, value);
        const unknown = call.operation.tags.includes('reports') ? 403 : 401;
        if (status !== unknown) faults.push(`not ${unknown}: ${call.name} by ${name}: ${status} ${text.slice(0, 200)}`);
      }
    });
    expect(faults).toEqual([]);
  });

  test('has changed nothing', async () => {
    expect(await snapshot()).toEqual(before);
  });
});

/** This test runs before the allowed calls, because their writes appear with a delay. */
test('the snapshot sees what is written', async () => {
  const start = await snapshot();
  const { c1 } = entities.things;
  const { token } = entities.admins.a;
  await ok('POST', `/api/plugins/telemetry/DEVICE/${c1.deviceId}/timeseries/ANY`, { seen: 1 }, token);
  await ok('POST', `/api/plugins/telemetry/DEVICE/${c1.deviceId}/SHARED_SCOPE`, { seen: 1 }, token);
  const seen = ['attributes', 'timeseries'].map((of) => `/api/plugins/telemetry/DEVICE/${c1.deviceId}/values/${of}`);
  await vi.waitFor(async () => expect(await ok('GET', seen[1]!, undefined, token)).toHaveProperty('seen'), {
    timeout: 20_000,
    interval: 100,
  });
  const after = await snapshot();
  const changed = Object.keys(after).filter((path) => after[path] !== start[path]);
  expect(changed.sort()).toEqual(seen);
});

describe('what is allowed', () => {
  test.each(tags)('%s', { retry: 0 }, async (tag) => {
    const faults: string[] = [];
    await inTurns(callsOfTag(tag), async (call) => {
      const { of } = ruleOf(call);
      for (const name of callerNames) {
        const caller = entities.callers[name];
        const word = of[caller.role];
        if ((word === 'public' || word === 'token') && name !== 'tenant') continue;
        for (const cell of cellsOf(call, word, name)) {
          if (cell.expected !== 200 || (isWriting(call) && !isMainCell(cell, word, caller))) continue;
          if (word === 'token' && cell.whose !== 'own') continue;
          const answer = await allowed(call, word, caller, cell);
          const line = `${call.name} by ${name} for ${cell.slot} (${cell.whose}): ${answer.status} ${answer.text.slice(0, 300)}`;
          const statuses = otherAnswers[call.name] ?? [200, 202];
          if (!statuses.includes(answer.status)) faults.push(`not ${statuses}: ${line}`);
          // A device may see its own entities.
          const hidden = word === 'token' ? [] : entities.hiddenFrom(caller);
          if (hidden.some((each) => answer.text.includes(each))) faults.push(`tells: ${line}`);
          if (!word.startsWith('[')) continue;
          const isNamed = answer.text.includes(`<${cell.slot}>`);
          if (isNamed !== isListed(word, cell.whose)) faults.push(`${isNamed ? 'lists' : 'leaves out'}: ${line}`);
        }
      }
    });
    expect(faults).toEqual([]);
  });
});

function isWriting({ name, operation }: MatrixCall): boolean {
  return operation.method !== 'GET' && !keepsEntities.test(name);
}

/** True for the one cell in which a caller tries a write: with its own entity, or the nearest one. */
function isMainCell({ slot, whose }: Cell, word: Word, { role }: Caller): boolean {
  if (slot === undefined) return true;
  if (word === 'admins' || word === 'free') return whose === 'shared';
  if (word === 'below') return whose === (role === 'system' ? 'shared' : 'own');
  return whose === (word === 'self' ? 'self' : 'own');
}

async function allowed(call: MatrixCall, word: Word, caller: Caller, cell: Cell): Promise<Answer> {
  if (word === 'public' || word === 'token') return await send(call, undefined, '', valuesOf(caller, cell));
  if (endsSessions.test(call.name)) return await send(call, caller, await newSession(caller), valuesOf(caller, cell));
  if (!isWriting(call)) return await send(call, caller, caller.credentials, valuesOf(caller, cell));
  const fresh = new Map<Slot, string>();
  for (const slot of call.slots) fresh.set(slot, await entities.fresh(caller, cell.whose, slot));
  const value: ValueOf = (slot) => fresh.get(slot)!;
  await prepare(call, value);
  return await send(call, caller, caller.credentials, value);
}

/** Makes what has to exist before the call can succeed. */
async function prepare({ name }: MatrixCall, value: ValueOf): Promise<void> {
  const { a } = entities.admins;
  if (/^DELETE .*\/relation$/.test(name)) {
    const end = (id: string) => ({ entityType: 'DEVICE', id });
    const relation = { from: end(value('deviceId')), to: end(value('peerId')), type: 'Matrix' };
    await ok('POST', '/api/relation', relation, a.token);
  }
  if (/^POST .*\/claim$/.test(name)) {
    const device = [...entities.made.values()].find((each) => each.name === value('deviceName'));
    await ok('POST', `/api/v1/${device.token}/claim`, { secretKey: 'pear' }, '');
  }
}

/** Opens another session of the same user, for a call that ends it. */
async function newSession(caller: Caller): Promise<string> {
  if (caller.credentials.startsWith('ApiKey')) return caller.credentials;
  switch (caller.role) {
    case 'system':
      return `Bearer ${(await api.login('sysadmin@thingsboard.org', 'sysadmin')).token}`;
    case 'tenant':
      return `Bearer ${(await api.login(entities.admins.a.email, entities.admins.a.password)).token}`;
    case 'customer':
      return `Bearer ${(await api.login(entities.customerUser.email, entities.customerUser.password)).token}`;
    case 'guest': {
      const publicId = entities.things.public.customerId;
      return `Bearer ${(await ok('POST', '/api/auth/login/public', { publicId }, '')).token}`;
    }
  }
}

/** A member of a body that names an entity reveals no more of another tenant's entity than of a missing one. */
test.each(tags)('what a body refers to: %s', { retry: 0 }, async (tag) => {
  const faults: string[] = [];
  await inTurns(callsOfTag(tag), async (call) => {
    const caller = entities.callers.tenant;
    const schema = call.operation.requestBody?.content['application/json']?.schema;
    if (!schema || ['-', 'public', 'token'].includes(ruleOf(call).of.tenant)) return;
    for (const [member, type, slot] of references) {
      if (!isReference(document, schema, member) || (member === 'id' && !call.name.endsWith(' id'))) continue;
      const answers: Answer[] = [];
      for (const whose of ['foreign', 'missing'] as const) {
        const id = entities.thingsOf(caller, whose)[slot];
        const referring: MatrixCall = {
          ...call,
          request: (value, furniture, by) => {
            const { url, body } = call.request(value, furniture, by);
            value(slot);
            const named = isPlain(document, schema, member) ? id : { entityType: type, id };
            const content = { ...JSON.parse(body!.content as string), [member]: named };
            return { url, body: { type: 'application/json', content: JSON.stringify(content) } };
          },
        };
        const value: ValueOf = (asked) => (asked === slot ? id : entities.things.c1[asked]);
        answers.push(await send(referring, caller, caller.credentials, value));
      }
      const [foreign, missing] = answers as [Answer, Answer];
      const isSame = foreign.status === missing.status && foreign.text === missing.text;
      const line = `${call.name} ${member}: ${foreign.status} ${foreign.text} / ${missing.status} ${missing.text}`;
      const isIgnored = foreign.status === 200 && missing.status === 200 && !foreign.text.includes(`<${slot}>`);
      if (!isIgnored && (!isSame || foreign.status < 400)) faults.push(line);
    }
  });
  expect(faults).toEqual([]);
});

const references: [member: string, type: string, slot: Slot][] = [
  ['customerId', 'CUSTOMER', 'customerId'],
  ['deviceId', 'DEVICE', 'deviceId'],
  ['deviceProfileId', 'DEVICE_PROFILE', 'profileId'],
  ['firmwareId', 'OTA_PACKAGE', 'otaPackageId'],
  ['softwareId', 'OTA_PACKAGE', 'otaPackageId'],
  ['tenantId', 'TENANT', 'tenantId'],
  ['userId', 'USER', 'userId'],
];

function isReference(of: Document, schema: Schema, member: string): boolean {
  const found = resolved(of, schema).properties?.[member];
  return found !== undefined && (isPlain(of, schema, member) || JSON.stringify(found).includes('"entityType"'));
}

/** True for a member that has the id alone, as in views. */
function isPlain(of: Document, schema: Schema, member: string): boolean {
  const { format, anyOf = [] } = resolved(of, schema).properties![member]!;
  return format === 'uuid' || anyOf.some((each) => each.format === 'uuid');
}

test('a guest signs in with the id of a public customer only', async () => {
  const status = async (publicId: string) =>
    (await api.send('POST', '/api/auth/login/public', { publicId }, '')).status;
  const { things, missing } = entities;
  const ids = [things.public.customerId, things.c1.customerId, things.b.customerId, missing.customerId];
  expect(await Promise.all(ids.map(status))).toEqual([200, 401, 401, 401]);
});
