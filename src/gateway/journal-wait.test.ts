import { expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { JournalWait } from './journal-wait.ts';

const { mqttPausedMsMax: waitMs } = limits;

it('messages that wait one after the other share the time, a refusal long after the last one begins it again', () => {
  let now = 1_000;
  const wait = new JournalWait(() => now);
  for (let passed = 0; passed <= waitMs; passed += 100) {
    expect(wait.mayWait()).toBe(true);
    now += 100;
  }
  // The next messages come at once.
  for (let n = 0; n < 3; n += 1) expect(wait.mayWait()).toBe(false);
  // The journal had room meanwhile, but no message of this gateway came.
  now += 60 * waitMs;
  expect(wait.mayWait()).toBe(true);
  wait.end();
  now += waitMs;
  expect(wait.mayWait()).toBe(true);
});
