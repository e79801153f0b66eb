import { createRequire } from 'node:module';
import { expect, test } from 'vitest';

const require = createRequire(import.meta.url);

test('a packet does not make mqtt-packet cache a buffer for each number', async () => {
  // Another file of this test process may have used mqtt-packet with its cache: both modules are loaded again.
  for (const file of Object.keys(require.cache))
    if (file.includes('/node_modules/mqtt-packet/')) delete require.cache[file];
  const again = './generate.ts?again';
  const { generate } = (await import(again)) as typeof import('./generate.ts');
  const bytes = generate({ cmd: 'puback', messageId: 0x1234, reasonCode: 16 }, { protocolVersion: 5 });
  expect([...bytes]).toEqual([0x40, 4, 0x12, 0x34, 16, 0]);
  const numbers = require('mqtt-packet/numbers.js') as { cache: Record<number, Buffer> };
  expect(Object.keys(numbers.cache)).toEqual([]);
});
