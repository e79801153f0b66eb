import type { HttpRequest } from 'uWebSockets.js';
import { expect, it } from 'vitest';
import { readHead } from './head.ts';

it('asserts that a head is not read in the middle of another head', () => {
  const nested = { forEach: () => readHead({ forEach() {} } as unknown as HttpRequest) };
  expect(() => readHead(nested as unknown as HttpRequest)).toThrow('BUG: one head is read at a time');
});
