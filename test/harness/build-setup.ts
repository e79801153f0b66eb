/** Builds `dist/` once before the first engine starts; both engine groups call it, the second call finds it done. */
import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';

let built = false;

export default function setup(): void {
  if (built || process.env['ENGINE_MAIN'] || process.env['MILLRACE_TEST_BUILT']) return;
  // Files of an earlier build would be found by a wrong path.
  rmSync('dist', { recursive: true, force: true });
  execFileSync('npm', ['run', '--silent', 'build'], { stdio: 'inherit' });
  built = true;
  process.env['MILLRACE_TEST_BUILT'] = 'yes';
}
