/**
 * The scripts of package.json: a command of an operator works in a fresh checkout, too, for instance a restore on a new
 * host.
 */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as { scripts: Record<string, string> };

test('a benchmark gets the signals of npm, and not only the shell that has built it', () => {
  expect(scripts['bench']).toMatch(/ && exec node [\w./-]+$/);
});

test('each command of an operator builds what is missing', () => {
  const commands = Object.entries(scripts).filter(([, script]) => script.startsWith('node dist/'));
  expect(commands.length).toBeGreaterThan(5);
  for (const [name, script] of commands) {
    const file = script.slice('node '.length);
    expect(scripts[`pre${name}`], name).toBe(`[ -f ${file} ] || npm run --silent build`);
  }
});
