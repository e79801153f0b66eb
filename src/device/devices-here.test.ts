import { describe, expect, it } from 'vitest';
import type { DeviceRow } from './cached-device.ts';
import { DevicesHere } from './devices-here.ts';

const row: DeviceRow = { number: 1, id: 'i', tenantId: 't', customerId: null, profileId: 'p', name: 'n', version: 2 };
const clock = { now: () => 1_000, monotonic: () => 0 };
const open = () => new DevicesHere({ stride: 1, offset: 0 }, clock, 10);

describe('DevicesHere', () => {
  it('gives everybody the same object, so that no server time is handed out twice', () => {
    const here = open();
    const [one, two] = [here.adopt(row), here.adopt({ ...row })];
    expect(one).toBe(two);
    expect([one.nextTs(1_000), two.nextTs(1_000)]).toEqual([1_000, 1_001]);
  });

  it('lets a device go with its last holder', () => {
    const here = open();
    const device = here.adopt(row);
    here.adopt(row);
    here.release(device);
    expect(here.get(1)).toBe(device);
    here.release(device);
    expect(here.get(1)).toBeUndefined();
    expect(here.size).toBe(0);
  });

  it('goes on behind the last server time when the device comes back', () => {
    const here = open();
    const device = here.adopt(row);
    for (let i = 0; i < 10; i += 1) device.nextTs(1_000);
    here.release(device);
    expect(here.adopt(row).nextTs(1_000)).toBe(1_010);
  });

  it('takes over what a newer row says, and nothing of an older one', () => {
    const here = open();
    const device = here.adopt(row);
    here.adopt({ ...row, version: 3, name: 'renamed', profileId: 'other', customerId: 'c' });
    expect(device).toMatchObject({ name: 'renamed', profileId: 'other', customerId: 'c' });
    here.refresh({ ...row, version: 2, name: 'of before' });
    expect(device.name).toBe('renamed');
  });

  it('refuses to release what nobody holds', () => {
    const here = open();
    const device = here.adopt(row);
    here.release(device);
    expect(() => here.release(device)).toThrow('BUG');
  });
});
