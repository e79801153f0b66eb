import { afterAll, describe, expect, it, vi } from 'vitest';
import { cpuMs } from '../../test/harness/cpu-time.ts';
import { limits } from '../base/limits.ts';
import { loadConfig } from '../base/settings/config.ts';
import { costOf, PasswordHasher } from './password.ts';

const passwords = new PasswordHasher(2);
/** For tests that do not depend on the time of a hash. */
const cheap = new PasswordHasher(2, { ln: 10, r: 8, p: 1 });
afterAll(() => Promise.all([passwords.close(), cheap.close()]));

describe('PasswordHasher', () => {
  it('recognises a password, and no other', async () => {
    const hash = await passwords.hash('pear-tree-7');
    expect(hash).toMatch(/^\$scrypt\$ln=15,r=8,p=3\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/);
    expect(await passwords.verify('a@b.c', 'pear-tree-7', hash)).toBe(true);
    expect(await passwords.verify('a@b.c', 'pear-tree-8', hash)).toBe(false);
    expect(await passwords.hash('pear-tree-7')).not.toBe(hash);
  });

  it('has the cost of the setting, whose default is the full one', async () => {
    const { auth } = loadConfig({});
    expect(costOf(auth.passwordCost)).toEqual({ ln: 15, r: 8, p: 3 });
    const less = new PasswordHasher(2, costOf(loadConfig({ SECURITY_PASSWORD_COST: '10' }).auth.passwordCost));
    const hash = await less.hash('pear-tree-7');
    await less.close();
    expect(hash).toMatch(/^\$scrypt\$ln=10,r=8,p=3\$/);
    // A changed setting leaves the hashes that are stored as they are.
    expect(await passwords.verify('a@b.c', 'pear-tree-7', hash)).toBe(true);
    expect(() => loadConfig({ SECURITY_PASSWORD_COST: '9' })).toThrow('passwordCost');
  });

  it('takes as long for an unknown user', async () => {
    const hash = await passwords.hash('a');
    // Returns the shortest of three times, because other work of the process only adds to a time.
    const shortest = async (stored: string | null) => {
      const times: number[] = [];
      for (let i = 0; i < 3; i += 1) {
        const started = cpuMs();
        expect(await passwords.verify('a@b.c', 'b', stored)).toBe(false);
        times.push(cpuMs() - started);
      }
      return Math.min(...times);
    };
    const ratio = (await shortest(null)) / (await shortest(hash));
    expect(ratio).toBeGreaterThan(0.3);
    expect(ratio).toBeLessThan(3);
  });

  it('recognises a password that was right before at once, and takes its time for a wrong one', async () => {
    const hash = await passwords.hash('pear-tree-9');
    expect(await passwords.verify('a@b.c', 'pear-tree-9', hash)).toBe(true);
    const begin = cpuMs();
    for (let i = 0; i < 100; i += 1) expect(await passwords.verify('a@b.c', 'pear-tree-9', hash)).toBe(true);
    const hundredMs = cpuMs() - begin;
    const wrongBegin = cpuMs();
    expect(await passwords.verify('a@b.c', 'pear-tree-8', hash)).toBe(false);
    expect(cpuMs() - wrongBegin).toBeGreaterThan(hundredMs);
  });

  it('answers equal checks together at once, whether the user exists or not', async () => {
    for (const stored of [await cheap.hash('pear-tree-7'), null]) {
      const together = Array.from({ length: 5 }, () => cheap.verify('a@b.c', 'plum', stored));
      expect(cheap.waiting).toBe(1);
      expect(await Promise.all(together)).toEqual(Array(5).fill(false));
      expect(cheap.waiting).toBe(0);
    }
  });

  it('refuses with 429 when the queue is full', async () => {
    const checks = ['1', '2', '3'].map((user) => cheap.verify(user, 'a', null));
    await expect(cheap.verify('4', 'a', null)).rejects.toMatchObject({ status: 429, errorCode: 33 });
    await Promise.all(checks);
  });

  it('lets networks take turns: a flooding network makes room for others, and waits longest', async () => {
    const order: string[] = [];
    const check = (user: string, network: string, isKnown = false) =>
      cheap.verify(user, 'a', null, { network, isKnown }).then(
        () => order.push(user),
        () => order.push(`${user} refused`),
      );
    const flood = ['f1', 'f2', 'f3'].map((user) => check(user, '10.0.0'));
    const other = check('o1', '10.0.1');
    // Two networks with one waiter each: a third one is refused, unless its user was there before.
    const stranger = check('s1', '10.0.2');
    const known = check('k1', '10.0.3', true);
    await Promise.all([...flood, other, stranger, known]);
    expect(order.splice(0, 3).sort()).toEqual(['f3 refused', 'o1 refused', 's1 refused']);
    expect(order).toEqual(['f1', 'f2', 'k1']);
  });

  it('checks one password of each network in turn, in the order of arrival within a network', async () => {
    const fair = new PasswordHasher(10, { ln: 10, r: 8, p: 1 });
    const order: string[] = [];
    const check = async (user: string, network: string) => {
      await fair.verify(user, user, null, { network, isKnown: false });
      order.push(user);
    };
    const flood = ['f1', 'f2', 'f3', 'f4'].map((user) => check(user, '10.0.0'));
    const others = [check('o1', '10.0.1'), check('o2', '10.0.1'), check('p1', '10.0.2')];
    await Promise.all([...flood, ...others]);
    await fair.close();
    expect(order).toEqual(['f1', 'f2', 'o1', 'p1', 'f3', 'o2', 'f4']);
  });

  it('refuses with 429 after too long a wait', async () => {
    const [first, second] = ['1', '2'].map((user) => passwords.verify(user, 'a', null));
    const now = performance.now() + limits.passwordWaitMsMax + 1_000;
    const clock = vi.spyOn(performance, 'now').mockReturnValue(now);
    await expect(second).rejects.toMatchObject({ status: 429, errorCode: 33 });
    clock.mockRestore();
    expect(await first).toBe(false);
  });
});
