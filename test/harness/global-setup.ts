/** Starts one engine for every test that does not harm it; tests get its address through `inject`. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import build from './build-setup.ts';
import { createCertificate, httpsSettings, mqttsSettings } from './certificate.ts';
import { startEngine } from './engine.ts';
import { freePort } from './ports.ts';
import type { SharedEngine } from './shared-engine.ts';

/** Late points are gathered for a second only, so that tests with an old ts need not wait for the half minute. */
const sharedSettings = {
  DEMO_DATA: 'true',
  SHIP_LATE_SECONDS_MAX: '1',
  HTTP_TELL_WORKER: 'true',
  RULES_FILE: 'test/harness/rules.yaml',
  CLIENT_SIDE_RPC_TIMEOUT: '2000',
  // The limit holds for other addresses of loopback: most tests have this one, and give many wrong tokens.
  WRONG_CREDENTIALS_PER_MINUTE_MAX: '30',
  HTTP_TRUSTED_PROXIES: '127.0.0.1',
};

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  build();
  const directory = mkdtempSync(join(tmpdir(), 'millrace-certificate-'));
  const certificate = createCertificate(directory, 'server');
  // This file also holds the private key, as in some installations. No answer may contain the private key.
  const certificateAndKey = join(directory, 'server.pem');
  writeFileSync(certificateAndKey, readFileSync(certificate.key, 'utf8') + certificate.pem, { mode: 0o600 });
  const [httpsPort, mqttsPort] = [await freePort(), await freePort()];
  const secure = {
    ...httpsSettings(httpsPort, certificate),
    ...mqttsSettings(mqttsPort, { ...certificate, cert: certificateAndKey }),
  };
  const engine = await startEngine({ workers: 2, reports: true, env: { ...sharedSettings, ...secure } });
  const shared: SharedEngine = {
    ...engine.api.address,
    dataDir: engine.dataDir,
    mqttPort: engine.mqttPort,
    analyticsPort: engine.analyticsPort,
    mqttsPort,
    httpsPort,
    certificate: certificate.pem,
  };
  project.provide('engine', shared);
  let ended: Promise<void> | undefined;
  const end = () => {
    ended ??= engine.destroy().finally(() => rmSync(directory, { recursive: true, force: true }));
    return ended;
  };
  const watch = await whenAllHaveRun(project, () => void end().catch(() => {}));
  return async () => {
    clearInterval(watch);
    await end();
  };
}

/**
 * Ends the engine before the next group begins: idle, it takes a fifteenth of a processor from tests that have none to
 * spare.
 */
async function whenAllHaveRun(project: TestProject, callback: () => void): Promise<NodeJS.Timeout> {
  const { testFiles } = await project.globTestFiles();
  const timer = setInterval(() => {
    const files = project.vitest.state.getFiles().filter(({ projectName }) => projectName === project.name);
    const done = files.filter(({ result }) => result?.state === 'pass' || result?.state === 'fail');
    if (done.length < testFiles.length) return;
    clearInterval(timer);
    callback();
  }, 1_000);
  return timer.unref();
}
