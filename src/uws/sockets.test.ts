import { expect, test } from 'vitest';
import { Sockets } from './sockets.ts';

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Opens connections one after the other; none of them closes. */
function opener(sockets: Sockets) {
  let open = 0;
  return (address: string) => {
    const isAdmitted = sockets.admits(() => address, open + 1);
    if (isAdmitted) open += 1;
    return isAdmitted;
  };
}

test('an address has its share, others and trusted proxies have the rest', async () => {
  const table = new Map<string, number>();
  const readTable = async () => new Map(table);
  const isTrusted = (address: string) => address === '10.0.0.9';
  const sockets = new Sockets({ connectionsMax: 100, perAddressMax: () => 90, isTrusted, readTable });
  const opens = opener(sockets);
  // The state of the kernel's table when the first reading begins.
  table.set('10.0.0.1', 51);
  for (let n = 0; n < 60; n += 1) expect(opens('10.0.0.1')).toBe(true);
  await turn();
  for (let n = 60; n < 90; n += 1) expect(opens('10.0.0.1')).toBe(true);
  expect(opens('10.0.0.1')).toBe(false);
  expect(opens('10.0.0.2')).toBe(true);
  expect(opens('10.0.0.9')).toBe(true);
});

test('until the table was read, what was open before may be of any address', () => {
  const readTable = () => new Promise<Map<string, number>>(() => {});
  const sockets = new Sockets({ connectionsMax: 100, perAddressMax: () => 90, isTrusted: () => false, readTable });
  const opens = opener(sockets);
  for (let n = 0; n < 50; n += 1) expect(opens('10.0.0.1')).toBe(true);
  for (let n = 50; n < 90; n += 1) expect(opens('10.0.0.2')).toBe(true);
  expect(opens('10.0.0.2')).toBe(false);
  expect(opens('10.0.0.3')).toBe(true);
});

test('of several workers that share a port each has its part of an address', async () => {
  const readTable = async () =>
    new Map([
      ['10.0.0.1', 160],
      ['10.0.0.2', 40],
    ]);
  const sockets = new Sockets({ connectionsMax: 100, perAddressMax: () => 90, isTrusted: () => false, readTable });
  sockets.admits(() => '10.0.0.1', 95);
  await turn();
  // 0.8 of the 95 connections that are open here.
  for (let n = 76; n < 90; n += 1) expect(sockets.admits(() => '10.0.0.1', 96)).toBe(true);
  expect(sockets.admits(() => '10.0.0.1', 96)).toBe(false);
});
