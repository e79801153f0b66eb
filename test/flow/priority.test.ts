/** An ordinary user may run Millrace at a lower priority than its threads would have: `nice -n 15 npm start`. */
import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';

/** Runs a script under `nice -n 15`, without the capability to make a nice value smaller. Returns what it prints. */
function runNicely(script: string): string {
  const node = [process.execPath, '-e', `(async () => {${script}})()`];
  // Drops the capability with the tool of Debian. A user who is not root has none.
  const command = process.getuid!() === 0 ? ['setpriv', '--bounding-set=-all', '--inh-caps=-all', ...node] : node;
  return execFileSync('nice', ['-n', '15', ...command], { encoding: 'utf8' }).trim();
}

test('a thread keeps a nice value that is larger than its own', () => {
  const printed = runNicely(`
    const { getPriority } = require('node:os');
    const { lowerPriority } = await import('./dist/base/priority.js');
    const before = getPriority();
    lowerPriority(10);
    console.log(getPriority() - before);
  `);
  expect(printed).toBe('0');
});

test('passwords are hashed at a larger nice value than that of their thread', () => {
  const printed = runNicely(`
    const { PasswordHasher } = await import('./dist/auth/password.js');
    const passwords = new PasswordHasher(2, { ln: 10, r: 8, p: 1 });
    const hash = await passwords.hash('pear-tree-7');
    console.log(await passwords.verify('a@b.c', 'pear-tree-7', hash));
    await passwords.close();
  `);
  expect(printed).toBe('true');
});
