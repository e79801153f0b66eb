import { describe, expect, test } from 'vitest';
import { strictly } from '../value/lenient.ts';
import { decodeProvision, provisionJson, requestedCredentials } from './provision-request.ts';

const known = { provisionDeviceKey: 'k-pump', provisionDeviceSecret: 's3-pump' };

const decode = (members: object) => decodeProvision(Buffer.from(JSON.stringify(members)), strictly);
const refusal = (body: string): string => {
  try {
    decodeProvision(Buffer.from(body), strictly);
    return 'fine';
  } catch (error) {
    return (error as Error).message;
  }
};

describe('a provisioning request', () => {
  test('needs only a key and a secret; null counts as absent', () => {
    const request = decode({ ...known, deviceName: null, credentialsType: null, username: null, gateway: null });
    expect(request).toMatchObject({ key: 'k-pump', secret: 's3-pump', deviceName: null, gateway: false });
    expect(requestedCredentials(request).credentialsId).toMatch(/^[A-Za-z0-9]{20}$/);
  });

  test('has its name trimmed', () => {
    expect(decode({ ...known, deviceName: ' pump 7 ' }).deviceName).toBe('pump 7');
    expect(decode({ ...known, deviceName: '  ' }).deviceName).toBe('');
  });

  test('is refused without an echo of what is in it', () => {
    expect(refusal('{"provisionDeviceKey":"k-pump"}')).toBe('Member "provisionDeviceSecret" is missing.');
    expect(refusal('{"provisionDeviceKey":"k-pump","provisionDeviceSecret":5}')).toBe(
      'Member "provisionDeviceSecret" must be a string.',
    );
    expect(refusal('{"provisionDeviceSecret":"s3-pump"')).toBe('The body is not valid JSON.');
    expect(refusal('"s3-pump"')).toBe('A provisioning request must be a JSON object.');
    expect(refusal(JSON.stringify({ ...known, credentialsType: 'LWM2M_CREDENTIALS' }))).toBe(
      'Member "credentialsType" must be one of ACCESS_TOKEN, MQTT_BASIC, X509_CERTIFICATE.',
    );
    expect(refusal(JSON.stringify({ ...known, gateway: 'yes' }))).toBe('Member "gateway" must be true or false.');
  });
});

test('the answer has the credentials as their type has them', () => {
  const f = (members: object) =>
    JSON.stringify(
      provisionJson({ status: 'SUCCESS', credentials: requestedCredentials(decode({ ...known, ...members })) }),
    );
  expect(f({ token: 'T-1' })).toBe('{"credentialsValue":"T-1","credentialsType":"ACCESS_TOKEN","status":"SUCCESS"}');
  expect(f({ credentialsType: 'MQTT_BASIC', username: 'u', password: 'p' })).toBe(
    '{"credentialsValue":{"userName":"u","password":"p"},"credentialsType":"MQTT_BASIC","status":"SUCCESS"}',
  );
  expect(f({ credentialsType: 'X509_CERTIFICATE', hash: 'MIIB' })).toBe(
    '{"credentialsValue":"MIIB","credentialsType":"X509_CERTIFICATE","status":"SUCCESS"}',
  );
});

test('failures have two forms only', () => {
  expect(provisionJson({ status: 'NOT_FOUND' })).toEqual({
    errorMsg: 'Provision data was not found!',
    status: 'NOT_FOUND',
  });
  expect(provisionJson({ status: 'FAILURE' })).toEqual({ errorMsg: 'Failed to provision device!', status: 'FAILURE' });
});
