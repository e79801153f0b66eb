/** Which messages of JSON the points of a frame become, and for whom. */
import { expect, test } from 'vitest';
import { loadConfig } from '../base/settings/config.ts';
import { jsonFilterOf, jsonMessages } from './json-messages.ts';
import type { StreamPoint } from './stream-points.ts';

const defaults = loadConfig({}).stream.json;
const senderOf = (number: number, tenantId = 'mill', profileId = 'valve') => {
  return [number, { number, id: `id-${number}`, name: `valve "${number}"`, tenantId, profileId }] as const;
};
const senders = new Map([senderOf(1), senderOf(2), senderOf(3, 'bakery', 'oven')]);

function point(device: number, ts: number, key: string, json: string, seq = 0): StreamPoint {
  return { device, ts, key, json, seq, order: 5n, arrivedMs: 900 };
}

function messages(points: StreamPoint[], filter: Partial<typeof defaults> = {}, bytesMax = 1_000_000) {
  return jsonMessages('millrace', points, senders, jsonFilterOf({ ...defaults, ...filter }), bytesMax);
}

test('the points of a device and a ts are one message, whose subject names tenant, profile and device', () => {
  const points = [point(1, 10, 'a', '9007199254740993'), point(1, 10, 'b "x"', '"é"'), point(1, 11, 'a', '2')];
  const found = messages(points);
  expect(found.tooLarge).toBe(0);
  expect(found.messages).toEqual([
    {
      subject: 'millrace.json.mill.valve.id-1',
      body: '{"tenant":"mill","profile":"valve","device":"id-1","name":"valve \\"1\\"","ts":10,"arrived":900,"values":{"a":9007199254740993,"b \\"x\\"":"é"}}',
    },
    {
      subject: 'millrace.json.mill.valve.id-1',
      body: '{"tenant":"mill","profile":"valve","device":"id-1","name":"valve \\"1\\"","ts":11,"arrived":900,"values":{"a":2}}',
    },
  ]);
});

function values(points: StreamPoint[], filter: Partial<typeof defaults> = {}): string[] {
  return messages(points, filter).messages.map(({ body }) => JSON.stringify(JSON.parse(body).values));
}

test('a key that comes twice, and a point at server time of its own, begin another message', () => {
  expect(values([point(1, 10, 'a', '1'), point(1, 10, 'a', '2'), point(1, 10, 'b', '3')])).toEqual([
    '{"a":1}',
    '{"a":2,"b":3}',
  ]);
  expect(values([point(1, 10, 'a', '1', 16), point(1, 10, 'b', '2', 17)])).toEqual(['{"a":1}', '{"b":2}']);
  expect(values([point(1, 10, 'a', '1'), point(2, 10, 'b', '2')])).toEqual(['{"a":1}', '{"b":2}']);
});

test('tenants, profiles and keys that are not named, and devices that are gone, are left out', () => {
  const points = [point(1, 10, 'a', '1'), point(1, 10, 'b', '2'), point(3, 10, 'a', '3'), point(9, 10, 'a', '4')];
  expect(values(points)).toEqual(['{"a":1,"b":2}', '{"a":3}']);
  expect(values(points, { tenants: 'bakery' })).toEqual(['{"a":3}']);
  expect(values(points, { profiles: 'valve, none' })).toEqual(['{"a":1,"b":2}']);
  expect(values(points, { keys: 'b' })).toEqual(['{"b":2}']);
  expect(values(points, { tenants: 'bakery', keys: 'b' })).toEqual([]);
});

test('no message is larger than the servers take', () => {
  const points = Array.from({ length: 20 }, (_, n) => point(1, 10, `key${n}`, '"ééééé"'));
  const { messages: cut, tooLarge } = messages(points, {}, 200);
  expect(tooLarge).toBe(0);
  expect(cut.length).toBeGreaterThan(1);
  for (const { body } of cut) expect(Buffer.byteLength(body)).toBeLessThanOrEqual(200);
  expect(Object.keys(Object.assign({}, ...cut.map(({ body }) => JSON.parse(body).values)))).toHaveLength(20);
  const large = [point(1, 10, 'a', '1'), point(1, 10, 'b', `"${'x'.repeat(300)}"`), point(1, 10, 'c', '3')];
  const found = messages(large, {}, 200);
  expect(found.tooLarge).toBe(1);
  expect(found.messages.map(({ body }) => JSON.parse(body).values)).toEqual([{ a: 1 }, { c: 3 }]);
});
