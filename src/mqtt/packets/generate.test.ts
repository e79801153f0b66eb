import { createRequire } from 'node:module';
import { expect, test } from 'vitest';
import { generate } from './generate.ts';

const numbers = createRequire(import.meta.url)('mqtt-packet/numbers.js') as { cache: Record<number, Buffer> };

test('a packet does not make mqtt-packet cache a buffer for each number', () => {
  const bytes = generate({ cmd: 'puback', messageId: 0x1234, reasonCode: 16 }, { protocolVersion: 5 });
  expect([...bytes]).toEqual([0x40, 4, 0x12, 0x34, 16, 0]);
  expect(Object.keys(numbers.cache)).toEqual([]);
});
