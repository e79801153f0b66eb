import { afterAll, describe, expect, it } from 'vitest';
import { PasswordHasher } from './password.ts';

const passwords = new PasswordHasher(2);
afterAll(() => passwords.close());

describe('PasswordHasher', () => {
  it('knows a password again, and no other', async () => {
    const hash = await passwords.hash('pear-tree-7');
    expect(hash).toMatch(/^\$scrypt\$ln=15,r=8,p=3\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/);
    expect(await passwords.verify('pear-tree-7', hash)).toBe(true);
    expect(await passwords.verify('pear-tree-8', hash)).toBe(false);
    expect(await passwords.hash('pear-tree-7')).not.toBe(hash);
  });

  it('takes as long for an unknown user', async () => {
    const hash = await passwords.hash('a');
    // The shortest of three: what else the machine does only adds.
    const shortest = async (stored: string | null) => {
      const times: number[] = [];
      for (let i = 0; i < 3; i += 1) {
        const started = performance.now();
        expect(await passwords.verify('b', stored)).toBe(false);
        times.push(performance.now() - started);
      }
      return Math.min(...times);
    };
    const ratio = (await shortest(null)) / (await shortest(hash));
    expect(ratio).toBeGreaterThan(0.3);
    expect(ratio).toBeLessThan(3);
  });

  it('knows a password that was right before at once, and takes its time for a wrong one', async () => {
    const hash = await passwords.hash('pear-tree-9');
    expect(await passwords.verify('pear-tree-9', hash)).toBe(true);
    const begin = performance.now();
    for (let i = 0; i < 100; i += 1) expect(await passwords.verify('pear-tree-9', hash)).toBe(true);
    const hundredMs = performance.now() - begin;
    const wrongBegin = performance.now();
    expect(await passwords.verify('pear-tree-8', hash)).toBe(false);
    expect(performance.now() - wrongBegin).toBeGreaterThan(hundredMs);
  });

  it('refuses with 429 when the queue is full', async () => {
    const checks = Array.from({ length: 3 }, () => passwords.verify('a', null));
    await expect(passwords.verify('a', null)).rejects.toMatchObject({ status: 429, errorCode: 33 });
    await Promise.all(checks);
  });
});
