import { expect, test } from 'vitest';
import { Places, placeOwners } from './places.ts';

const tenant = (name: string) => placeOwners(name, null);

/** Returns the number of places that an owner gets. */
function fill(places: Places, owners = tenant('a')): number {
  for (let count = 0; ; count += 1) if (places.take(owners) !== 'taken') return count;
}

test('a tenant alone leaves a tenth free, and each further one finds room', () => {
  const places = new Places(1000);
  expect(fill(places)).toBe(900);
  expect(fill(places, tenant('b'))).toBe(90);
  expect(fill(places, tenant('c'))).toBe(9);
  expect(places.take(tenant('d'))).toBe('taken');
  expect(places.take(tenant('d'))).toBe('full');
});

test('a customer leaves a quarter to the others of its tenant', () => {
  const places = new Places(1000);
  expect(fill(places, placeOwners('a', 'x'))).toBe(750);
  expect(places.take(placeOwners('a', 'x'))).toBe('share');
  expect(fill(places)).toBe(150);
});

test('of two places an owner gets one, and of one place the first owner gets it', () => {
  const places = new Places(2);
  expect(fill(places)).toBe(1);
  expect(fill(places, tenant('b'))).toBe(1);
  expect(fill(new Places(1))).toBe(1);
});

test('released places can be taken again', () => {
  const places = new Places(10);
  const held = fill(places);
  expect(places.take(tenant('b'))).toBe('taken');
  places.release(tenant('b'));
  places.release(tenant('a'), held);
  expect(places.held).toBe(0);
  expect(places.take(tenant('a'), 10)).toBe('taken');
  expect(places.take(tenant('a'))).toBe('full');
});
