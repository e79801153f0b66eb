/**
 * Wrong tokens and sign-ins of one address: the address is refused for a minute, but credentials that were right from
 * there before are still served.
 */
import { randomInt } from 'node:crypto';
import { request } from 'node:http';
import { expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { hex, MqttClient } from '../../harness/mqtt-client.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

interface Answer {
  status: number;
  retryAfter: number;
  body: string;
}

/** Loopback addresses that no other test uses, and no other attempt of this one. */
function newAddress(): string {
  return `127.${randomInt(10, 250)}.${randomInt(250)}.${randomInt(1, 250)}`;
}

/** Each post has a connection of its own, so that all workers get some. */
function post(localAddress: string, token: string): Promise<Answer> {
  const { host, port } = sharedEngine().address;
  const path = `/api/v1/${token}/telemetry`;
  return new Promise((resolve, reject) => {
    const call = request({ host, port, path, method: 'POST', localAddress, agent: false }, (answer) => {
      let body = '';
      answer.on('data', (chunk: Buffer) => {
        body += chunk.toString();
      });
      const retryAfter = Number(answer.headers['retry-after'] ?? 0);
      answer.on('end', () => resolve({ status: answer.statusCode!, retryAfter, body }));
    });
    call.on('error', reject);
    call.end('{"a":1}');
  });
}

async function signIn(localAddress: string, token: string): Promise<string> {
  const client = await MqttClient.open({ localAddress });
  try {
    return hex((await client.connect({ token })).reasonCode);
  } finally {
    client.cut();
  }
}

/** Repeats until `times` attempts in a row are refused: then every worker refuses the address. */
async function refusedEverywhere(tell: () => Promise<boolean>, times: number): Promise<number> {
  let others = 0;
  for (let inRow = 0; inRow < times; ) {
    if (await tell()) inRow += 1;
    else {
      inRow = 0;
      others += 1;
      if (others > 1_000) throw new Error('the address is not refused after 1000 wrong tries');
    }
  }
  return others;
}

async function expectRightOnesServed(address: string, known: Device, unknown: Device): Promise<void> {
  // A worker that has refused the address on its own receives from the others which credentials were right there.
  await eventually(async () => {
    for (let n = 0; n < 10; n += 1) if ((await post(address, known.token)).status !== 200) return false;
    return true;
  });
  for (let n = 0; n < 4; n += 1) expect(await signIn(address, known.token)).toBe('0x00');
  const refused = await post(address, unknown.token);
  expect([refused.status, JSON.parse(refused.body).errorCode]).toEqual([429, 33]);
  expect(refused.retryAfter).toBeGreaterThan(0);
  expect(refused.retryAfter).toBeLessThanOrEqual(60);
  expect(await signIn(address, unknown.token)).toBe('0x9f');
  const elsewhere = newAddress();
  expect((await post(elsewhere, unknown.token)).status).toBe(200);
  expect(await signIn(elsewhere, unknown.token)).toBe('0x00');
}

test('wrong tokens over HTTP: a device that was right before is still served, at every worker and over MQTT', async () => {
  const [known, unknown] = [await newDevice(), await newDevice()];
  const address = newAddress();
  expect((await post(address, known.token)).status).toBe(200);
  const wrong = await refusedEverywhere(async () => (await post(address, 'no-such-token')).status === 429, 20);
  expect(wrong).toBeGreaterThanOrEqual(30);
  await expectRightOnesServed(address, known, unknown);
});

test('wrong sign-ins over MQTT count alike', async () => {
  const [known, unknown] = [await newDevice(), await newDevice()];
  const address = newAddress();
  expect(await signIn(address, known.token)).toBe('0x00');
  await refusedEverywhere(async () => (await signIn(address, 'no-such-token')) === '0x9f', 20);
  await expectRightOnesServed(address, known, unknown);
});
