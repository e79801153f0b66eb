import { expect, test } from 'vitest';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { steadySleep, useSteadyClock } from '../../../test/harness/steady-clock.ts';
import { Started } from './started.ts';
import { StopSteps } from './stop-steps.ts';

useSteadyClock();

test('what was started last is stopped first, each once, and a failure stops no other', async () => {
  const started = new Started();
  const stopped: string[] = [];
  started.add('stores', () => stopped.push('stores'));
  started.add('bus', () => Promise.reject(new Error('gone')));
  started.add('doors', async () => {
    await steadySleep(5);
    stopped.push('doors');
  });
  await started.stop(new StopSteps({ msMax: 10_000, log: silentLog }));
  await started.stop(new StopSteps({ msMax: 10_000, log: silentLog }));
  expect(stopped).toEqual(['doors', 'stores']);
});

test('only what must be whole is waited for when the time is over', async () => {
  const started = new Started();
  const stopped: string[] = [];
  started.addWhole('journal', async () => {
    await steadySleep(50);
    stopped.push('journal');
  });
  started.add('requests', () => new Promise(() => {}));
  await started.stop(new StopSteps({ msMax: 10, log: silentLog }));
  expect(stopped).toEqual(['journal']);
});
