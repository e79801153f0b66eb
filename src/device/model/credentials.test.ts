import { describe, expect, test } from 'vitest';
import { certificateId, checkedCredentials, mqttBasicId } from './credentials.ts';

describe('the id of MQTT credentials', () => {
  test('is the digest of client id and user name', () => {
    expect(mqttBasicId('tank-client', 'tank-user')).toBe(
      '09685a61189206cf1cd35cd5a54821bf58b0de5cdf9fe1bdcf3af677aaf9ff6b',
    );
  });

  test('is the digest of the client id alone', () => {
    expect(mqttBasicId('tank-client', '')).toBe('70f3d0430ac52c70073db6692616152a96880c73d5fe8e73b871068a552bd66e');
  });

  test('is the user name alone', () => {
    expect(mqttBasicId('', 'tank-user')).toBe('tank-user');
  });
});

test('a certificate has one id, with or without header lines and line ends', () => {
  const bare = 'MIIBszCCAVmgAwIBAgIU';
  const pem = `-----BEGIN CERTIFICATE-----\r\n${bare.slice(0, 10)}\n${bare.slice(10)}\n-----END CERTIFICATE-----\n`;
  expect(certificateId(pem)).toBe(certificateId(bare));
  expect(certificateId(bare)).toMatch(/^[0-9a-f]{64}$/);
  expect(checkedCredentials('X509_CERTIFICATE', 'ignored', pem)).toEqual({
    type: 'X509_CERTIFICATE',
    credentialsId: certificateId(bare),
    value: pem,
  });
});

test('the value of MQTT credentials names all three members', () => {
  const { value } = checkedCredentials('MQTT_BASIC', '', '{"clientId":"c","userName":"","other":1}');
  expect(value).toBe('{"clientId":"c","userName":null,"password":null}');
});

test('faults of credentials are named', () => {
  const f = (type: Parameters<typeof checkedCredentials>[0], id: string, value: string | null) => {
    try {
      checkedCredentials(type, id, value);
      return 'fine';
    } catch (error) {
      return (error as Error).message;
    }
  };
  expect(f('ACCESS_TOKEN', '', null)).toBe('Device credentials id should be specified!');
  expect(f('MQTT_BASIC', '', '{"password":"p"}')).toBe('Both mqtt client id and user name are empty!');
  expect(f('MQTT_BASIC', '', '{"clientId":"c","password":"p"}')).toBe(
    'Password cannot be specified along with client id',
  );
  expect(f('MQTT_BASIC', '', '{"clientId":5}')).toBe('Invalid credentials body for simple mqtt credentials!');
  expect(f('MQTT_BASIC', '', null)).toBe('Invalid credentials body for simple mqtt credentials!');
  expect(f('X509_CERTIFICATE', '', '-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----')).toBe(
    'Device credentials value should be specified!',
  );
});
