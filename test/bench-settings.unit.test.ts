/** Wrong arguments of `npm run bench -- …` are refused with a message that names the right ones. */
import { expect, test } from 'vitest';
import { loadBenchSettings, UsageError } from '../bench/settings.ts';

test('a setting of a benchmark is named with its group', () => {
  const load = (override: string, scenario = 'mqtt') => loadBenchSettings([override], scenario);
  expect(load('mqtt.seconds=4').mqtt.seconds).toBe(4);
  expect(() => load('seconds=4')).toThrow(new UsageError('config/bench.yaml has no seconds. Write mqtt.seconds=4.'));
  expect(() => load('seconds=4', 'storeacks')).toThrow('Write storeAcks.seconds=4.');
  expect(() => load('mqtt.second=4')).toThrow(/mqtt has connections, .*seconds/);
  expect(() => load('doomed=4', 'all')).toThrow('Did you mean crash.doomed?');
  expect(() => load('mqtt.seconds=four')).toThrow('mqtt.seconds must be a number, as in mqtt.seconds=3.');
});
