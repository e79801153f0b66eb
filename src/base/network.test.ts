import { expect, test } from 'vitest';
import { networkOf, subnetOf } from './network.ts';

test('of IPv4 the address, or the /24', () => {
  expect(networkOf('10.1.2.3')).toBe('10.1.2.3');
  expect(subnetOf('10.1.2.3')).toBe('10.1.2');
});

test('of IPv6 the /64, in any spelling', () => {
  const spellings = [
    '2001:db8::1',
    '2001:0db8:0000:0000:0000:0000:0000:0002',
    '2001:DB8:0:0:ffff::',
    '2001:db8::%eth0',
  ];
  expect(new Set(spellings.map((address) => networkOf(address)))).toEqual(new Set(['2001:db8:0:0']));
  expect(networkOf('2001:db8:0:1::1')).not.toBe(networkOf('2001:db8::1'));
  expect(networkOf('::1')).toBe('0:0:0:0');
});

test('an IPv4 address inside IPv6 is that address', () => {
  for (const address of ['::ffff:10.1.2.3', '0000:0000:0000:0000:0000:ffff:0a01:0203', '::ffff:a01:203']) {
    expect(networkOf(address)).toBe('10.1.2.3');
    expect(subnetOf(address)).toBe('10.1.2');
  }
});

test('what is no address is a network of its own', () => {
  for (const text of ['', 'unix', '1:2:3', '::1::2', '1:2:3:4:5:6:7:8:9', 'g::1']) expect(networkOf(text)).toBe(text);
});
