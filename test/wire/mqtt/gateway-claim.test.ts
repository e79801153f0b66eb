/** A gateway announces that its devices may be claimed: `v1/gateway/claim`. */
import { beforeAll, expect, test } from 'vitest';
import { childName, findChild, gatewayTopic, withGateway } from '../../harness/mqtt-gateway.ts';
import { newCustomer, newCustomerUser, type Person } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const { claim, connect } = gatewayTopic;
let user: Person;

beforeAll(async () => {
  user = await newCustomerUser(await newCustomer());
});

async function claimed(device: string, secretKey: string): Promise<string> {
  const path = `/api/customer/device/${encodeURIComponent(device)}/claim`;
  const answer = await sharedEngine().send('POST', path, { secretKey }, user.token);
  return `${answer.status}`;
}

test('connected children may be claimed with the values that the gateway sent', async () => {
  await withGateway({}, async (client) => {
    const [a, b] = [childName('A'), childName('B')];
    await client.publish(connect, { device: a });
    await client.publish(connect, { device: b });
    const body = `{"${a}":{"secretKey":"s","durationMs":60000},"${b}":{}}`;
    expect((await client.publish(claim, body)).reasonCode).toBe(0);
    expect(await claimed(a, 'wrong')).toBe('400');
    expect(await claimed(a, 's')).toBe('200');
    expect(await claimed(b, '')).toBe('200');
  });
});

test('a child that is not connected through this gateway is refused by name and not made; the others are offered', async () => {
  await withGateway({}, async (client) => {
    const [a, nobody] = [childName('A'), childName('nobody')];
    await client.publish(connect, { device: a });
    const ack = await client.publish(claim, `{"${a}":{"secretKey":"s"},"${nobody}":{},"x":5}`);
    expect(ack.reasonCode).toBe(0x99);
    expect(ack.properties?.reasonString).toContain(nobody);
    expect(await findChild(nobody)).toBeUndefined();
    expect(await claimed(a, 's')).toBe('200');
  });
});

test('MQTT 3 gets its acknowledgement for a claim without devices', async () => {
  await withGateway({ level: 4 }, async (client) => {
    const nobody = childName('nobody');
    await client.publish(claim, { [nobody]: {} });
    expect(await findChild(nobody)).toBeUndefined();
    await client.quiet();
  });
});
