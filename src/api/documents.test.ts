/** Documents that users store in entities: their caps, and which calls read them. */
import { describe, expect, it, vi } from 'vitest';
import { admin, error, sharedApi, unique } from '../../test/harness/api-handlers.ts';

const { call, signIn, tokenOf, create, postgres } = await sharedApi();

describe('documents of users', () => {
  const chars = (count: number) => ({ text: 'x'.repeat(count) });
  const tooLong = (field: string, bytes: number, most = 65_536) =>
    error(400, 31, `Validation error: ${field} has ${bytes} bytes; at most ${most} are kept`);

  it('have a cap, for any owner', async () => {
    const [jwt, system] = [await tokenOf(), await tokenOf(admin.systemEmail)];
    const save = (path: string, body: object, by = jwt) => call('POST', path, { jwt: by, body });
    const full = chars(65_536 - 11);
    const over = chars(65_536 - 10);
    const device = await create(jwt, { deviceData: full, additionalInfo: full });
    expect(await save('/api/device', { ...device, deviceData: over })).toMatchObject(tooLong('deviceData', 65_537));
    const late = tooLong('additionalInfo', 65_537);
    expect(await save('/api/device', { ...device, additionalInfo: over })).toMatchObject(late);
    expect(await save('/api/customer', { title: unique('c'), additionalInfo: over })).toMatchObject(late);
    expect(await save('/api/tenant', { title: unique('t'), additionalInfo: over }, system)).toMatchObject(late);
    const { body: me } = await call('GET', '/api/auth/user', { jwt });
    expect(await save('/api/user', { ...me, additionalInfo: over })).toMatchObject(late);
    const file = { title: unique('f'), version: '1', type: 'FIRMWARE', url: 'http://x/y' };
    expect(await save('/api/otaPackage', { ...file, additionalInfo: over })).toMatchObject(late);
    const bulk = await save('/api/devices/bulk', { devices: [{ name: unique('b'), additionalInfo: over }] });
    expect(bulk.body.results[0].error).toBe(late.body.message);
    const profile = { name: unique('p'), image: 'i'.repeat(524_288), description: 'd'.repeat(65_536) };
    const saved = (await save('/api/deviceProfile', profile)).body;
    const change = (members: object) => save('/api/deviceProfile', { ...saved, ...members });
    expect(await change({ image: 'i'.repeat(524_289) })).toMatchObject(tooLong('image', 524_289, 524_288));
    expect(await change({ description: '…'.repeat(21_846) })).toMatchObject(tooLong('description', 65_538));
    expect(await change({ profileData: over })).toMatchObject(tooLong('profileData', 65_537));
  });

  it('are not read by a call that does not show them', async () => {
    const { token } = await signIn();
    const { body: me } = await call('GET', '/api/auth/user', { jwt: token });
    const additionalInfo = chars(60_000);
    expect(await call('POST', '/api/user', { jwt: token, body: { ...me, additionalInfo } })).toMatchObject({
      status: 200,
    });
    const key = { userId: me.id, description: 'k', enabled: true };
    const { value } = (await call('POST', '/api/apiKey', { jwt: token, body: key })).body;
    const query = vi.spyOn(postgres, 'query');
    try {
      await call('POST', '/api/auth/logout', { headers: { 'x-authorization': `ApiKey ${value}` } });
      await call('POST', '/api/auth/logout', { jwt: token });
      await signIn();
      const answers = await Promise.all(query.mock.results.map(({ value: rows }) => rows));
      expect(answers.length).toBeGreaterThan(3);
      expect(JSON.stringify(answers).length).toBeLessThan(10_000);
    } finally {
      query.mockRestore();
    }
    const read = await call('GET', '/api/auth/user', { jwt: await tokenOf() });
    expect(read.body.additionalInfo).toEqual(additionalInfo);
  });

  it('are refused together when a page of them is too long', async () => {
    const jwt = await tokenOf();
    await postgres.query(
      `insert into customer (id, created_time, tenant_id, title, additional_info)
       select gen_random_uuid(), 0, $1, 'long ' || n, to_json(repeat('x', 60000)) from generate_series(1, 300) as n`,
      [(await call('GET', '/api/auth/user', { jwt })).body.tenantId.id],
    );
    const page = (size: number) => call('GET', `/api/customers?pageSize=${size}&page=0&textSearch=long`, { jwt });
    expect(await page(10_000)).toMatchObject(
      error(400, 31, 'The entities asked for hold 18 MiB; at most 16 MiB are read at once: ask for fewer.'),
    );
    expect((await page(250)).body).toMatchObject({ totalElements: 300, totalPages: 2, hasNext: true });
    await postgres.query(`delete from customer where title like 'long %'`);
  });
});
