import { describe, expect, it } from 'vitest';
import { WrongLogins } from './wrong-logins.ts';

function setUp() {
  const time = { monotonic: 0 };
  const clock = { now: () => 0, monotonic: () => time.monotonic };
  return { time, tries: new WrongLogins({ clock, wrongMax: 3, blockMs: 60_000, addressesMax: 2 }) };
}

describe('WrongLogins', () => {
  it('blocks an address after so many wrong ones, for its time, and no other address', () => {
    const { tries, time } = setUp();
    for (let i = 0; i < 3; i += 1) {
      expect(tries.isBlocked('one')).toBe(false);
      tries.wrong('one');
    }
    expect(tries.isBlocked('one')).toBe(true);
    expect(tries.isBlocked('two')).toBe(false);
    time.monotonic += 60_000;
    expect(tries.isBlocked('one')).toBe(false);
    tries.wrong('one');
    expect(tries.isBlocked('one')).toBe(false);
  });

  it('forgets the wrong ones with a right one', () => {
    const { tries } = setUp();
    for (let i = 0; i < 2; i += 1) tries.wrong('one');
    tries.right('one');
    tries.wrong('one');
    expect(tries.isBlocked('one')).toBe(false);
  });

  it('bounds the addresses it knows', () => {
    const { tries } = setUp();
    for (const address of ['one', 'two', 'three']) for (let i = 0; i < 3; i += 1) tries.wrong(address);
    expect(['one', 'two', 'three'].map((address) => tries.isBlocked(address))).toEqual([false, true, true]);
  });
});
