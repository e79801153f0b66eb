import { expect, it } from 'vitest';
import { Addresses } from './addresses.ts';

const isTrusted = (address: string) => address === '10.0.0.7';

it('gives each address its share, and a trusted proxy as much as it wants', () => {
  const addresses = new Addresses({ connectionsMax: () => 2, provisioningMax: 1, isTrusted });
  const enter = (address: string) => addresses.enter(address);
  expect(['192.0.2.1', '::ffff:192.0.2.1', '192.0.2.1', '192.0.2.2'].map(enter)).toEqual([true, true, false, true]);
  expect(['2001:db8::1', '2001:db8::2', '2001:db8::3'].map(enter)).toEqual([true, true, false]);
  expect(['10.0.0.7', '10.0.0.7', '10.0.0.7'].map(enter)).toEqual([true, true, true]);
  // The refused connection keeps its place until its transport is closed.
  addresses.leave('192.0.2.1');
  expect(enter('192.0.2.1')).toBe(false);
  for (let n = 0; n < 3; n += 1) addresses.leave('192.0.2.1');
  expect(enter('192.0.2.1')).toBe(true);
});

it('gives few places to connections that request credentials', () => {
  const addresses = new Addresses({ connectionsMax: () => 9, provisioningMax: 1, isTrusted });
  for (const address of ['192.0.2.1', '192.0.2.1', '10.0.0.7', '10.0.0.7']) addresses.enter(address);
  expect([addresses.enterProvisioning('192.0.2.1'), addresses.enterProvisioning('192.0.2.1')]).toEqual([true, false]);
  addresses.leaveProvisioning('192.0.2.1');
  expect(addresses.enterProvisioning('192.0.2.1')).toBe(true);
  expect([addresses.enterProvisioning('10.0.0.7'), addresses.enterProvisioning('10.0.0.7')]).toEqual([true, true]);
});
