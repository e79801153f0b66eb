import { expect, test } from 'vitest';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { steadySleep, useSteadyClock } from '../../../test/harness/steady-clock.ts';
import { StopSteps } from './stop-steps.ts';

useSteadyClock();

const never = () => new Promise(() => {});
const after = (ms: number) => () => steadySleep(ms);

test('all steps share one time, a late one is abandoned and named', async () => {
  const begun = performance.now();
  const steps = new StopSteps({ msMax: 400, log: silentLog });
  await steps.step('quick', () => {});
  await steps.step('slow', after(150));
  await steps.step('failed', () => Promise.reject(new Error('x')));
  await steps.step('stuck', never);
  await steps.step('next', never);
  expect(performance.now() - begun).toBeLessThan(5_000);
  expect(steps.unfinished).toBe(true);
  expect(steps.waits).toMatch(/^slow 0\.\d s, stuck \d\.\d s \(not finished\), next 0\.\d s \(not finished\)$/);
});

test('what must be whole is waited for beyond the time', async () => {
  const steps = new StopSteps({ msMax: 10, log: silentLog });
  let done = false;
  await steps.whole('journal', async () => {
    await after(120)();
    done = true;
  });
  expect([done, steps.unfinished, steps.msLeft]).toEqual([true, false, 0]);
  expect(steps.waits).toMatch(/^journal 0\.\d s$/);
});
