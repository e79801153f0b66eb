/** CPU and memory of a process and its children, measured at a process whose child computes. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { expect, test } from 'vitest';
import { usageOfTree } from './process-usage.ts';

test('memory and CPU of a child count for its parent, also after the child has ended', async () => {
  const own = usageOfTree(process.pid)!;
  expect(own.residentBytes).toBeGreaterThan(20e6);
  const burn = 'const end = Date.now() + 60000; while (process.cpuUsage().user < 3e5 && Date.now() < end);';
  const child = spawn(process.execPath, ['-e', `${burn} process.stdout.write("x"); setTimeout(() => {}, 60000)`]);
  await once(child.stdout, 'data');
  const during = usageOfTree(process.pid)!;
  expect(during.cpuSeconds - own.cpuSeconds).toBeGreaterThan(0.25);
  // The memory of this process may have shrunk meanwhile.
  expect(during.residentBytes - process.memoryUsage.rss()).toBeGreaterThan(5e6);
  const exit = once(child, 'exit');
  child.kill('SIGKILL');
  await exit;
  expect(usageOfTree(process.pid)!.cpuSeconds - own.cpuSeconds).toBeGreaterThan(0.25);
  expect(usageOfTree(child.pid!)).toBeUndefined();
});
