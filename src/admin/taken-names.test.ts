/** Names that another tenant has, through every call of the REST API that takes a chosen name. */
import { describe, expect, it } from 'vitest';
import { type Answer, admin, sharedApi, unique } from '../../test/harness/api-handlers.ts';
import { limits } from '../base/limits.ts';

const { call, tokenOf, create, moveClock } = await sharedApi();

describe('names that another tenant has', () => {
  const refused = async (answers: Promise<Answer>[]) => (await Promise.all(answers)).map(({ status }) => status);

  it('are refused a few times, then all chosen names are refused until the window ends', async () => {
    const other = await tokenOf('tenant@thingsboard.org', 'tenant');
    const jwt = await tokenOf();
    const token = unique('taken');
    await create(other, {}, `?accessToken=${token}`);
    const email = `${unique('taken')}@millrace.local`;
    const user = { email, authority: 'TENANT_ADMIN' };
    expect(await call('POST', '/api/user?sendActivationMail=false', { jwt: other, body: user })).toMatchObject({
      status: 200,
    });
    const profile = (jwtOf: string, provisionDeviceKey: string) => ({
      jwt: jwtOf,
      body: {
        name: unique('profile'),
        provisionDeviceKey,
        profileData: {
          provisionConfiguration: { type: 'ALLOW_CREATE_NEW_DEVICES', provisionDeviceSecret: 'pear' },
        },
      },
    });
    expect(await call('POST', '/api/deviceProfile', profile(other, token))).toMatchObject({ status: 200 });

    const make = (accessToken: string) =>
      call('POST', `/api/device?accessToken=${accessToken}`, { jwt, body: { name: unique('pump') } });
    const invite = (address: string) =>
      call('POST', '/api/user?sendActivationMail=false', { jwt, body: { ...user, email: address } });
    // Names of the caller's own tenant reveal nothing and are not counted.
    const own = unique('own');
    expect(await make(own)).toMatchObject({ status: 200 });
    for (let n = 0; n < limits.takenNamesMax; n += 1) expect(await make(own)).toMatchObject({ status: 400 });

    const device = await create(jwt);
    const credentials = (await call('GET', `/api/device/${device.id.id}/credentials`, { jwt })).body;
    const change = (credentialsId: string) =>
      call('POST', '/api/device/credentials', { jwt, body: { ...credentials, credentialsId, version: null } });
    expect(await refused([make(token), invite(email), change(token)])).toEqual([400, 400, 400]);
    expect(await call('POST', '/api/deviceProfile', profile(jwt, token))).toMatchObject({ status: 400 });
    const saved = (await call('GET', '/api/auth/user', { jwt })).body;
    const renamed = await call('POST', '/api/user', {
      jwt,
      body: { ...saved, email, currentPassword: admin.password },
    });
    expect(renamed).toMatchObject({ status: 400 });
    const rows = Array.from({ length: limits.takenNamesMax }, () => unique('row'));
    const bulk = await call('POST', '/api/devices/bulk', {
      jwt,
      body: { devices: rows.map((name) => ({ name, accessToken: name === rows[1] ? unique('free') : token })) },
    });
    // A token that occurs in many rows of one call is looked up once.
    expect(bulk.body).toMatchObject({ created: 1, failed: rows.length - 1 });
    for (let n = 6; n < limits.takenNamesMax; n += 1) expect(await make(token)).toMatchObject({ status: 400 });

    const full = { status: 429, body: { errorCode: 33 } };
    const more = [make(token), make(unique('free')), invite(email), invite(`${unique('free')}@millrace.local`)];
    for (const answer of await Promise.all(more)) expect(answer).toMatchObject(full);
    for (const name of [token, unique('free')]) {
      expect(await change(name)).toMatchObject(full);
      expect(await call('POST', '/api/deviceProfile', profile(jwt, name))).toMatchObject(full);
      const disguised = { ...profile(jwt, name).body, provisionType: 'X509_CERTIFICATE_CHAIN' };
      expect(await call('POST', '/api/deviceProfile', { jwt, body: disguised })).toMatchObject(full);
      const body = { devices: [{ name: unique('row'), accessToken: name }, { name: unique('row') }] };
      const outcome = await call('POST', '/api/devices/bulk', { jwt, body });
      expect(outcome.body).toMatchObject({ created: 1, failed: 1 });
      expect(outcome.body.results[0].error).toContain('leave them out');
    }
    // Random names, unchanged ones and other tenants still work.
    await create(jwt);
    expect(await call('POST', '/api/user', { jwt, body: { ...saved, firstName: 'Ada', version: null } })).toMatchObject(
      {
        status: 200,
      },
    );
    await create(other, {}, `?accessToken=${unique('free')}`);
    moveClock(limits.takenNamesMs);
    expect(await make(unique('free'))).toMatchObject({ status: 200 });
  });
});
