/**
 * `npm test` runs three groups: `unit` needs nothing but the source, `engine` talks to one engine that is started once
 * for the whole run, `own-engine` starts, kills and restarts its own; eight minutes on two cores are the budget.
 * `npm run test:long` runs what takes minutes, because a file starts many processes or waits for long faults, and more
 * worlds (`long`), fifty lost hosts for each level of acknowledgement (`long-hosts`), and calls of the API with every
 * invalid input (`long-engine`).
 */
import { defineConfig } from 'vitest/config';

const needsNoEngine = ['src/**/*.test.ts', 'test/*.unit.test.ts', 'test/floors.test.ts', 'test/contract/**/*.test.ts'];
const ownEngine = ['test/flow/**/*.test.ts', 'test/crash/run.test.ts'];

export default defineConfig({
  test: {
    // Tests wait for sockets and child processes more than they compute.
    maxWorkers: 4,
    pool: 'forks',
    // A process runs many files: its start and the modules that all of them share cost more than most tests.
    isolate: false,
    passWithNoTests: false,
    allowOnly: false,
    // A machine that stalls for seconds makes a condition late, not wrong.
    expect: { poll: { timeout: 20_000 } },
    setupFiles: ['test/harness/property-seed.ts'],
    // A call that a failed test left behind, on a connection that the test then closed itself.
    onUnhandledError: ({ name }) => name !== 'AbandonedError',
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: [...needsNoEngine, 'test/crash/**/*.test.ts', 'test/world/**/*.test.ts'],
          exclude: ownEngine,
          globalSetup: ['test/harness/unit-setup.ts'],
          sequence: { groupOrder: 1 },
          testTimeout: 180_000,
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'engine',
          include: ['test/wire/**/*.test.ts', 'test/deploy.test.ts'],
          globalSetup: ['test/harness/global-setup.ts'],
          // One engine serves them all, and most of them wait for it. Groups run one after the other.
          maxWorkers: 5,
          sequence: { groupOrder: 0 },
          // Real processes share the cores: a deadline that another process made late may be tried again.
          retry: 2,
          testTimeout: 60_000,
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'long-engine',
          include: ['test/wire/rest/openapi.test.ts'],
          globalSetup: ['test/harness/global-setup.ts'],
          env: { OPENAPI_INPUTS: 'all' },
          sequence: { groupOrder: 2 },
          retry: 1,
          testTimeout: 60_000,
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'own-engine',
          include: ownEngine,
          globalSetup: ['test/harness/own-engine-setup.ts'],
          sequence: { groupOrder: 1 },
          // As above, but never the crash run: another seed would hide what was lost.
          retry: 2,
          testTimeout: 180_000,
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'long-hosts',
          include: ['test/long/lost-hosts.test.ts'],
          globalSetup: ['test/harness/own-engine-setup.ts'],
          env: { HOST_LOSSES: process.env['HOST_LOSSES'] ?? '50' },
          maxWorkers: 3,
          sequence: { groupOrder: 3 },
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'long',
          include: ['test/long/**/*.test.ts', 'test/world/world.test.ts'],
          exclude: ['test/long/lost-hosts.test.ts'],
          globalSetup: ['test/harness/own-engine-setup.ts'],
          env: { WORLD_SEEDS: process.env['WORLD_SEEDS'] ?? '101-400' },
          maxWorkers: 3,
          sequence: { groupOrder: 3 },
          retry: 1,
          testTimeout: 900_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
});
