/** A device announces over MQTT that it may be claimed (docs/mqtt.md#claiming). */
import { expect, test } from 'vitest';
import { hex } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';
import { newCustomer, newCustomerUser, ok } from '../../harness/people.ts';

const claim = 'v1/devices/me/claim';

test.each([
  ['nothing', ''],
  ['an empty object', '{}'],
  ['a secret and a time', '{"secretKey":"plum","durationMs":60000}'],
])('a claim with %s is acknowledged', (_, body) =>
  withDevice({}, async (client) => {
    expect(hex((await client.publish(claim, body)).reasonCode)).toBe('0x00');
  }),
);

test.each([
  ['no JSON', '{"secretKey":'],
  ['an array', '[]'],
  ['a secret that is no text', '{"secretKey":5}'],
  ['a time that is no number', '{"durationMs":"60000"}'],
])('a claim that is %s is refused with 0x99, and the connection stays', (_, body) =>
  withDevice({}, async (client) => {
    const ack = await client.publish(claim, body);
    expect(hex(ack.reasonCode)).toBe('0x99');
    expect(ack.properties?.reasonString).toBeTruthy();
    await client.quiet();
  }),
);

test('a user with the secret of the device may claim it from then on', () =>
  withDevice({}, async (client, device) => {
    const customerId = await newCustomer();
    const { token } = await newCustomerUser(customerId);
    const { name } = await ok('GET', `/api/device/${device.id}`);
    expect(hex((await client.publish(claim, '{"secretKey":"plum"}')).reasonCode)).toBe('0x00');
    const answer = await ok('POST', `/api/customer/device/${name}/claim`, { secretKey: 'plum' }, token);
    expect(answer.response).toBe('SUCCESS');
    expect((await ok('GET', `/api/device/${device.id}`)).customerId.id).toBe(customerId);
    // The connection of the device continues.
    expect(hex((await client.publish('v1/devices/me/telemetry', '{"t":1}')).reasonCode)).toBe('0x00');
  }));
