import { expect, test } from 'vitest';
import type { Handler } from './bus.ts';
import { JsonChannel } from './json-channel.ts';
import { isText, UnreadMessage } from './messages.ts';

interface Note {
  text: string;
}

const isNote = (value: object): value is Note => 'text' in value && isText(value.text);

test('a message reaches every other process with its sender, and not the sender itself', async () => {
  const handlers = new Set<Handler>();
  const bus = {
    connected: true,
    publish: (channel: string, payload: Buffer | string) => {
      for (const handler of handlers) handler(Buffer.from(payload), channel);
    },
    subscribe: async (_: string, handler: Handler) => {
      handlers.add(handler);
      return () => void handlers.delete(handler);
    },
    onReconnect: () => {},
    close: async () => {},
  };
  const received: [string, string, string][] = [];
  const open = async (name: string) => {
    const onMessage = ({ text }: Note, from: string) => void received.push([name, text, from]);
    const channel = new JsonChannel({ bus, channel: 'notes', isContent: isNote, onMessage });
    await channel.start();
    return channel;
  };
  const [a, b, c] = [await open('a'), await open('b'), await open('c')];
  a.publish({ text: 'plum' });
  expect(received.splice(0)).toEqual([
    ['b', 'plum', a.process],
    ['c', 'plum', a.process],
  ]);
  for (const unread of ['{"from":"x"}', '{"text":"plum"}', '[]', 'plum'])
    expect(() => bus.publish('notes', unread), unread).toThrow(UnreadMessage);
  b.stop();
  c.publish({ text: 'pear' });
  expect(received).toEqual([['a', 'pear', c.process]]);
});
