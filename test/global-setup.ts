/** One engine for every test that does not hurt it; its address reaches the tests through `inject`. */
import type { TestProject } from 'vitest/node';
import build from './build-setup.ts';
import { startEngine } from './engine.ts';
import type { SharedEngine } from './shared-engine.ts';

/** Late points are gathered for a second only, so that tests with an old ts need not wait for the half minute. */
const sharedSettings = {
  DEMO_DATA: 'true',
  SHIP_LATE_SECONDS_MAX: '1',
  HTTP_TELL_WORKER: 'true',
  RULES_FILE: 'test/wire/rules.yaml',
  CLIENT_SIDE_RPC_TIMEOUT: '2000',
};

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  build();
  const engine = await startEngine({ workers: 2, env: sharedSettings });
  const shared: SharedEngine = { ...engine.api.address, dataDir: engine.dataDir, mqttPort: engine.mqttPort };
  project.provide('engine', shared);
  return () => engine.destroy();
}
