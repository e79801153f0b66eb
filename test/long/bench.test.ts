/**
 * Short forms of benchmarks whose full runs take minutes: every phase of them runs once over little data, and must
 * store, read and delete exactly what it says. Rates are not judged.
 */
import { execFile, execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';

const timeoutMs = 240_000;

beforeAll(() => {
  execFileSync('npx', ['tsc', '-p', 'tsconfig.bench.json'], { stdio: 'inherit' });
});

/** Runs a scenario to its end; returns what it printed, without the file of its result. */
async function bench(scenario: string, settings: Record<string, number>): Promise<string> {
  const overrides = Object.entries(settings).map(([name, value]) => `${scenario}.${name}=${value}`);
  const args = ['dist-bench/bench/main.js', scenario, ...overrides];
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: timeoutMs });
  const [, written] = /written to (.+)$/m.exec(stdout) ?? [];
  expect(written, stdout).toBeDefined();
  rmSync(written!);
  return stdout;
}

test('a small fleet and a smaller one are measured in turn, and every record is stored once', async () => {
  const devices = { devices: 100, many: 0, most: 2_000, gateways: 4 };
  const times = { rounds: 1, warmupSeconds: 0, seconds: 1, firstSeconds: 3, everySeconds: 10, steadySeconds: 2 };
  const output = await bench('fleet', { ...devices, ...times, sockets: 32, settleSeconds: 0, keep: 0, targets: 0 });
  expect(output).toContain('every acknowledged record, once; nothing was refused');
});

test('points through gateways are stored, read, reported and deleted exactly, and are there after a restart', async () => {
  const size = { points: 200_000, turns: 20, gateways: 4, messageDevices: 50 };
  const output = await bench('billion', { ...size, samples: 20, deletes: 2, settleSeconds: 0, targets: 0 });
  expect(output).toContain('every point of every device, once');
  expect(output).toContain('every other point');
});

test('idle connections all come back after they were cut, and none is refused', async () => {
  const size = { devices: 600, stormDevices: 300, workers: 2, processes: 2, othersConnections: 8, othersRate: 100 };
  const output = await bench('connections', { ...size, stormRounds: 1, settleSeconds: 1, quietSeconds: 1, targets: 0 });
  expect(output).toContain('connections that were refused or ended by themselves: 0');
});
