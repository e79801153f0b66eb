/** Wrong arguments of `npm run bench -- …` are refused with a message that names the right ones. */
import { expect, test } from 'vitest';
import { helpOf } from '../bench/command-line.ts';
import { loadBenchSettings, UsageError } from '../bench/settings.ts';

test('a setting of a benchmark is named with its group', () => {
  const load = (override: string, scenario = 'mqtt') => loadBenchSettings([override], scenario);
  expect(load('mqtt.seconds=4').mqtt.seconds).toBe(4);
  expect(() => load('seconds=4')).toThrow(new UsageError('config/bench.yaml has no seconds. Write mqtt.seconds=4.'));
  expect(() => load('seconds=4', 'storeacks')).toThrow('Write storeAcks.seconds=4.');
  expect(() => load('mqtt.second=4')).toThrow(/mqtt has connections, .*seconds/);
  expect(() => load('doomed=4', 'all')).toThrow('Did you mean crash.doomed?');
  for (const text of ['four', '-3', 'Infinity', ''])
    expect(() => load(`mqtt.seconds=${text}`)).toThrow(
      'mqtt.seconds must be a number from 0 on, as in mqtt.seconds=3.',
    );
});

test('the help of a benchmark has each setting with what it means, or says that there is none', () => {
  const help = helpOf('tails', 'p99').join('\n');
  expect(help).toContain('--NAME NUMBER');
  expect(help).toMatch(/^ {2}rounds=\d+ +Each load is measured this often/m);
  expect(helpOf('micro', 'parts')).toEqual(['\nmicro: parts', '\nIt has no settings.']);
  const others = helpOf('levels', 'acknowledgements').join('\n');
  expect(others).toContain('It also reads settings of http, mqtt, gateway, storeAcks, changed as GROUP.NAME=NUMBER:');
  expect(others).toMatch(/^ {2}http: devices=\d+, sockets=\d+, /m);
  expect(others).toMatch(/^ {2}storeAcks: rate=\d+, /m);
});
