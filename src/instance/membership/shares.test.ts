/** The share of a host in all MQTT connections. */
import { expect, test } from 'vitest';
import { limits } from '../../base/limits.ts';
import { sharesOf } from './shares.ts';

const host = (name: string, workers: number, mqttConnections: number | null, ageMs = 0) => {
  return { name, workers, mqttConnections, ageMs };
};

test('a host has a share of all connections by its workers, and the surplus above that', () => {
  const shares = sharesOf([
    host('large', 4, 300),
    host('small', 2, 300),
    host('new', 2, 0),
    host('silent', 2, 500, limits.hostSilentMs + 1),
    host('without MQTT', 2, null),
  ]);
  expect(shares.map((each) => [each.host.name, each.share, each.surplus])).toEqual([
    ['large', 300, 0],
    ['small', 150, 150],
    ['new', 150, 0],
  ]);
});

test('no host gives away a connection that no other host lacks', () => {
  expect(sharesOf([host('a', 1, 2), host('b', 1, 1)]).map(({ surplus }) => surplus)).toEqual([0, 0]);
  expect(sharesOf([host('a', 1, 0), host('b', 1, 0)]).map(({ surplus }) => surplus)).toEqual([0, 0]);
});
