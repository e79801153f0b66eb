import { describe, expect, it } from 'vitest';
import { nameIn } from './chain.ts';

describe('the name of a device in its common name', () => {
  const f = (text: string, pattern: string, expected: string | undefined) =>
    expect(nameIn(text, pattern), `${text} ${pattern}`).toBe(expected);

  it('is the first group that took part, else what the pattern matched', () => {
    f('pump-7.fleet.example', '(.*)\\.fleet\\.example', 'pump-7');
    f('pump-7.fleet.example', 'pump-\\d+', 'pump-7');
    f('pump-7', '(valve-.*)|(pump-.*)', 'pump-7');
    f('  pump-7  ', '.*', 'pump-7');
  });

  it('is none when the pattern finds nothing, or is no pattern', () => {
    f('pump-7', 'valve-.*', undefined);
    f('pump-7', '(', undefined);
    f('pump-7', '( *)', undefined);
  });

  it('is none when the search takes too long', () => {
    const startedAt = performance.now();
    f(`${'a'.repeat(200)}!`, '^(a+)+$', undefined);
    expect(performance.now() - startedAt).toBeLessThan(1_000);
  });
});
