/**
 * Commands that end at their deadline (docs/rest.md#commands): on time, and with the status of their paths.
 */
import { expect, test } from 'vitest';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

async function spent<T>(work: Promise<T>): Promise<[T, number]> {
  const begin = performance.now();
  return [await work, performance.now() - begin];
}

test.concurrent.each([
  ['/api/rpc', 'twoway', 504],
  ['/api/rpc', 'oneway', 504],
  ['/api/plugins/rpc', 'twoway', 409],
  ['/api/plugins/rpc', 'oneway', 409],
] as const)(
  '%s/%s without a session answers %i, empty, after the 5 s that any timeout is lifted to',
  async (prefix, kind, status) => {
    const device = await newDevice();
    const body = { method: 'm', timeout: kind === 'twoway' ? 10 : 5000 };
    const [answer, ms] = await spent(sharedEngine().send('POST', `${prefix}/${kind}/${device.id}`, body));
    expect(`${answer.status} ${await answer.text()}`).toBe(`${status} `);
    expect(ms).toBeGreaterThan(4_900);
    expect(ms).toBeLessThan(9_800);
  },
);

test.concurrent.each([
  ['/api/rpc', 504],
  ['/api/plugins/rpc', 408],
])(
  '%s/twoway to a device that takes the command and never replies answers %i, empty, on time',
  async (prefix, status) => {
    const device = await newDevice();
    const calling = spent(sharedEngine().send('POST', `${prefix}/twoway/${device.id}`, { method: 'm', timeout: 5000 }));
    const polled = await fetch(`${sharedEngine().http}/api/v1/${device.token}/rpc?timeout=4000`);
    expect(polled.status).toBe(200);
    const [answer, ms] = await calling;
    expect(`${answer.status} ${await answer.text()}`).toBe(`${status} `);
    expect(ms).toBeGreaterThan(4_900);
    expect(ms).toBeLessThan(9_800);
  },
);
