import { describe, expect, it } from 'vitest';
import { deviceRow } from '../../test/harness/device-row.ts';
import { LocalDevices } from './local-devices.ts';
import { CachedDevice } from './model/cached-device.ts';

const row = { ...deviceRow(1), version: 2 };
const open = () => new LocalDevices();

describe('LocalDevices', () => {
  it('gives all holders the same object', () => {
    const here = open();
    const [one, two] = [here.adopt(row), here.adopt({ ...row })];
    expect(one).toBe(two);
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

  it('takes over a newer row, and nothing of an older one', () => {
    const here = open();
    const device = here.adopt(row);
    here.adopt({ ...row, version: 3, name: 'renamed', profileId: 'other', customerId: 'c' });
    expect(device).toMatchObject({ name: 'renamed', profileId: 'other', customerId: 'c' });
    here.refresh({ ...row, version: 2, name: 'earlier' });
    expect(device.name).toBe('renamed');
  });

  it('gives the number of a lost device to another one, and keeps the lost one for its holders', () => {
    const here = open();
    const lost = here.adopt(row);
    const other = here.adopt({ ...row, id: 'other', tenantId: 'u', version: 1 });
    expect([other.id, other.tenantId, lost.tenantId]).toEqual(['other', 'u', 't']);
    here.refresh({ ...row, version: 3, name: 'renamed' });
    expect(other.name).toBe(row.name);
    here.release(lost);
    expect(here.get(1)).toBe(other);
    here.release(other);
    expect(here.size).toBe(0);
  });

  it('takes the object of a cache as it is, unless there is one already', () => {
    const here = open();
    const cached = new CachedDevice(row);
    const device = here.adopt(cached);
    expect(device).toBe(cached);
    here.refresh({ ...row, version: 3, name: 'renamed' });
    expect(here.adopt(new CachedDevice(row))).toBe(device);
    expect(device.name).toBe('renamed');
    here.release(device);
    expect(here.get(1)).toBe(cached);
    here.release(device);
    expect(here.size).toBe(0);
    expect(here.adopt(cached)).toBe(cached);
    expect(here.get(1)).toBe(cached);
  });

  it('refuses to release a device without holders', () => {
    const here = open();
    const device = here.adopt(row);
    here.release(device);
    expect(() => here.release(device)).toThrow('BUG');
  });
});
