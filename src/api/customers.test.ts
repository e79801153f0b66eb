/**
 * Customers over the REST API: a device that changes its customer, and the data that stays after a customer is deleted.
 */
import { beforeAll, describe, expect, it } from 'vitest';
import { type Answer, error, sharedApi, unique } from '../../test/harness/api-handlers.ts';
import { systemClock as clock } from '../base/clock.ts';
import { nullUuid } from '../base/uuid.ts';

const { call, tokenOf, create, postgres, tokens } = await sharedApi();

describe('a device that changes its customer', () => {
  let jwt: string;
  let ofA: string;
  let customerId: string;
  beforeAll(async () => {
    jwt = await tokenOf('tenant@thingsboard.org', 'tenant');
    ofA = await tokenOf('customerA@thingsboard.org', 'customer');
    customerId = (await call('GET', '/api/auth/user', { jwt: ofA })).body.customerId.id;
  });

  const ownerOf = async (id: string) => (await call('GET', `/api/device/${id}`, { jwt })).body.customerId.id;
  const unassign = (id: string, query = '') => call('DELETE', `/api/customer/device/${id}${query}`, { jwt });
  const tokenOfDevice = async (id: string) =>
    (await call('GET', `/api/device/${id}/credentials`, { jwt })).body.credentialsId;
  const toA = () => create(jwt, { customerId: { entityType: 'CUSTOMER', id: customerId } });

  it('is not kept by a save that its former customer began before', async () => {
    const device = await toA();
    const id = device.id.id;
    let save: Promise<Answer> | undefined;
    await postgres.transaction(async (queries) => {
      await queries.query('update device set customer_id = null where id = $1', [id]);
      save = call('POST', '/api/device', { jwt: ofA, body: { ...device, version: undefined, label: 'mine' } });
      const waits = `select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%for update%'`;
      while ((await postgres.query(waits)).length === 0);
    });
    expect(await save).toMatchObject({ status: 403 });
    expect(await ownerOf(id)).toBe(nullUuid);
  });

  it('keeps its token, or gets another one that the former customer never sees', async () => {
    const id = (await toA()).id.id;
    const first = await tokenOfDevice(id);
    expect(await unassign(id)).toMatchObject({ status: 200 });
    expect(await tokenOfDevice(id)).toBe(first);
    expect(await unassign(id, '?rotateToken=true')).toMatchObject({ status: 400 });
    await call('POST', `/api/customer/${customerId}/device/${id}`, { jwt });
    expect(await tokens.lookup(first)).toMatchObject({ id });
    expect(await unassign(id, '?rotateToken=true')).toMatchObject({ status: 200 });
    expect(await tokens.lookup(first)).toBeNull();
    expect(await tokens.lookup(await tokenOfDevice(id))).toMatchObject({ id });
    expect(await call('GET', `/api/device/${id}/credentials`, { jwt: ofA })).toMatchObject({ status: 403 });
  });

  it('with other credentials than a token does not rotate, and stays where it is', async () => {
    const id = (await toA()).id.id;
    const stored = (await call('GET', `/api/device/${id}/credentials`, { jwt })).body;
    const basic = { credentialsType: 'MQTT_BASIC', credentialsValue: JSON.stringify({ userName: unique('u') }) };
    const body = { ...stored, ...basic, credentialsId: null };
    expect(await call('POST', '/api/device/credentials', { jwt, body })).toMatchObject({ status: 200 });
    expect(await unassign(id, '?rotateToken=true')).toMatchObject(
      error(400, 31, expect.stringContaining('rotateToken is for devices with an access token')),
    );
    expect(await ownerOf(id)).toBe(customerId);
  });

  it('is not opened again by claims of the former customer', async () => {
    const device = await toA();
    const id = device.id.id;
    const offer = { claimingData: { secretKey: 's', expirationTime: clock.now() + 60_000 } };
    const write = (by: string, body: object) =>
      call('POST', `/api/plugins/telemetry/${id}/SERVER_SCOPE`, { jwt: by, body });
    const claim = () =>
      call('POST', `/api/customer/device/${device.name}/claim`, { jwt: ofA, body: { secretKey: 's' } });
    expect(await write(ofA, offer)).toMatchObject({ status: 403 });
    expect(await write(ofA, { claimingAllowed: true })).toMatchObject({ status: 403 });
    expect(await write(ofA, { note: 1 })).toMatchObject({ status: 200 });
    expect(await write(jwt, offer)).toMatchObject({ status: 200 });
    await postgres.query('insert into device_claim values ($1, sha256($2), $3)', [id, Buffer.from('s'), 2 ** 50]);
    await unassign(id);
    expect(await claim()).toMatchObject({ status: 400, body: 'FAILURE' });
    expect(await write(jwt, offer)).toMatchObject({ status: 200 });
    expect(await claim()).toMatchObject({ status: 200 });
    const giveBack = (by: string) =>
      call('DELETE', `/api/customer/device/${device.name}/claim?rotateToken=true`, { jwt: by });
    const token = await tokenOfDevice(id);
    expect(await giveBack(ofA)).toMatchObject({ status: 403 });
    expect(await giveBack(jwt)).toMatchObject({ status: 200 });
    expect(await tokenOfDevice(id)).not.toBe(token);
  });
});

describe('an entity that is no device', () => {
  it('has a number that no device has, and leaves a tombstone and no attributes when it is deleted', async () => {
    const jwt = await tokenOf();
    const asAdmin = (method: string, url: string, body?: unknown) => call(method, url, { jwt, body });
    const title = unique('Orchard');
    const { id } = (await asAdmin('POST', '/api/customer', { title })).body.id;
    const path = `/api/plugins/telemetry/CUSTOMER/${id}/SERVER_SCOPE`;
    expect((await asAdmin('POST', path, { a: 1 })).status).toBe(200);
    const read = (what: string, where: string) =>
      postgres.query<{ number: number }>(`select ${what} as number ${where}`);
    const [row] = await read('number', `from entity_number where entity_id = '${id}'`);
    const number = row!.number;
    expect(await read('number', `from device where number = ${number}`)).toEqual([]);
    expect(await read('count(*)', `from entity_attribute where entity = ${number}`)).toEqual([{ number: 1 }]);
    expect((await asAdmin('DELETE', `/api/customer/${id}`)).status).toBe(200);
    expect(await read('count(*)', `from entity_attribute where entity = ${number}`)).toEqual([{ number: 0 }]);
    const tombstones = await postgres.query(
      'select keys, order_number, handed_over from tombstones where device = $1',
      [number],
    );
    expect(tombstones).toEqual([{ keys: null, order_number: null, handed_over: true }]);
  });
});
