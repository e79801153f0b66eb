import { describe, expect, it } from 'vitest';
import { CachedDevice } from './model/cached-device.ts';
import { RecentDevices } from './recent-devices.ts';

const ids = { id: 'id', tenantId: 'tenant', customerId: null, profileId: 'profile' };
const deviceOf = (number: number) => new CachedDevice({ ...ids, number, name: `device ${number}`, version: 1 });

describe('RecentDevices', () => {
  it('gives the device of exactly the token, as a Map does, while sets fill and lose devices', () => {
    const recent = new RecentDevices(64);
    const model = new Map<string, CachedDevice>();
    let held = 0;
    for (let n = 0; n < 5_000; n += 1) {
      const token = `token-${(n * 7919) % 131}`;
      if (n % 5 === 4) {
        expect(recent.take(token)).toBe(model.get(token));
        model.delete(token);
      } else {
        const found = recent.get(token);
        expect(found).toBe(model.get(token));
        const { isSetFull } = recent;
        const left = recent.set(token, deviceOf(n));
        // Only another device of a full set leaves.
        if (found === undefined) expect(left !== undefined).toBe(isSetFull);
        for (const [other, device] of model) if (device === left) model.delete(other);
        model.set(token, recent.get(token)!);
      }
      expect(recent.size).toBe(model.size);
      held = Math.max(held, recent.size);
    }
    expect(held).toBeGreaterThan(48);
    expect(held).toBeLessThanOrEqual(64);
    for (const [token, device] of model) expect(recent.get(token)).toBe(device);
    expect(new Set(recent.takeAll())).toEqual(new Set(model.values()));
    expect([recent.size, recent.takeAll()]).toEqual([0, []]);
  });

  it('replaces the devices of a full set in turn', () => {
    const recent = new RecentDevices(4);
    const left = Array.from({ length: 12 }, (_, n) => recent.set(`token-${n}`, deviceOf(n))?.number);
    expect(left).toEqual([undefined, undefined, undefined, undefined, 0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it('tells tokens of any characters apart', () => {
    const recent = new RecentDevices(4);
    const tokens = ['é', 'e', 'eé', '\u{1f600}'];
    for (const [n, token] of tokens.entries()) recent.set(token, deviceOf(n));
    expect(tokens.map((token) => recent.get(token)?.number)).toEqual([0, 1, 2, 3]);
    expect(recent.get('')).toBeUndefined();
  });
});
