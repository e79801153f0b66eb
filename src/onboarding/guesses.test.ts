import { expect, test } from 'vitest';
import { Guesses } from './guesses.ts';

function start() {
  let nowMs = 0;
  const clock = { now: () => nowMs, monotonic: () => nowMs };
  const guesses = new Guesses({ clock, wrongMax: 2, windowMs: 1_000, addressesMax: 2 });
  const f = (address: string) => {
    try {
      return guesses.begin(address);
    } catch (error) {
      return (error as { status: number }).status;
    }
  };
  return { f, pass: (ms: number) => (nowMs += ms) };
}

test('an address has so many wrong tries, then none until its window ends', () => {
  const { f, pass } = start();
  f('10.0.0.1');
  f('10.0.0.1');
  expect(f('10.0.0.1')).toBe(429);
  expect(f('10.0.0.2')).toBeTypeOf('function');
  pass(1_000);
  expect(f('10.0.0.1')).toBeTypeOf('function');
});

test('a right try is forgiven', () => {
  const { f } = start();
  for (let i = 0; i < 5; i += 1) (f('10.0.0.1') as () => void)();
  expect(f('10.0.0.1')).toBeTypeOf('function');
});

test('many at once pass no more than one after another', () => {
  const { f } = start();
  const tries = Array.from({ length: 5 }, () => f('10.0.0.1'));
  expect(tries.filter((result) => result === 429)).toHaveLength(3);
});

test('the addresses of one IPv6 network count as one', () => {
  const { f } = start();
  f('2001:0db8:0000:0001:0000:0000:0000:0001');
  f('2001:0db8:0000:0001:0000:0000:0000:0002');
  expect(f('2001:0db8:0000:0001:ffff:0000:0000:0003')).toBe(429);
  expect(f('2001:0db8:0000:0002:0000:0000:0000:0001')).toBeTypeOf('function');
});
