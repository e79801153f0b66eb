import { expect, test } from 'vitest';
import { type Client, unknownClient } from './client.ts';
import { subackBytes } from './subscribe.ts';

const client: Client = { ...unknownClient, level: 5 };
const text = 'The filter "x" matches no topic.';
const isSaid = (to: Client) => subackBytes(to, 7, [0x8f], text).includes(text);

test('SUBACK has no Reason String for a client that wants none, has no room for it, or speaks MQTT 3', () => {
  expect(isSaid(client)).toBe(true);
  expect(isSaid({ ...client, isTerse: true })).toBe(false);
  expect(isSaid({ ...client, packetBytesMax: 20 })).toBe(false);
  expect(isSaid({ ...client, level: 4 })).toBe(false);
});
