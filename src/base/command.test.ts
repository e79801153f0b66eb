import { expect, test } from 'vitest';
import { parseWords } from './command.ts';
import { StartError } from './errors.ts';

test('words are options with their values, and others', () => {
  expect(parseWords(['show', '--from', 'A', 'b'], ['from', 'to'], '')).toEqual({
    options: { from: 'A' },
    others: ['show', 'b'],
  });
});

test.each([
  [['--form', 'A'], "Unknown option '--form'"],
  [['--from'], "Option '--from <value>' argument missing"],
])('words %j are refused in one sentence with the usage', (words, sentence) => {
  const refused = () => parseWords(words, ['from'], 'usage: it');
  expect(refused).toThrow(new StartError(`${sentence}; usage: it`));
});
