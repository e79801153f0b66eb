/** Wrong arguments of `npm run bench -- …` are refused with a message that names the right ones. */
import { expect, test } from 'vitest';
import { helpOf } from '../bench/command-line.ts';
import { figure, rangeText } from '../bench/report.ts';
import { loadBenchSettings, settingsReadBy, UsageError } from '../bench/settings.ts';

test('a setting of a benchmark is named with its group', () => {
  const load = (override: string, scenario = 'mqtt') => loadBenchSettings([override], scenario);
  expect(load('mqtt.seconds=4').mqtt.seconds).toBe(4);
  expect(() => load('seconds=4')).toThrow(new UsageError('config/bench.yaml has no seconds. Write mqtt.seconds=4.'));
  expect(() => load('seconds=4', 'storeacks')).toThrow('Write storeAcks.seconds=4.');
  expect(() => load('mqtt.second=4')).toThrow(/mqtt has connections, .*seconds/);
  expect(() => load('doomed=4', 'all')).toThrow('Did you mean crash.doomed?');
});

test('a value that a benchmark cannot use is refused with the values that are right', () => {
  const f = (override: string, sentence: string) => {
    const load = () => loadBenchSettings([override], 'mqtt');
    if (sentence === '') expect(load).not.toThrow();
    else expect(load).toThrow(new UsageError(sentence));
  };
  for (const text of ['four', '-3', 'Infinity', '', ' ', '0'])
    f(`mqtt.seconds=${text}`, `mqtt.seconds must be a number above 0, not "${text}".`);
  for (const text of ['0', '1.5', '-1', 'NaN'])
    f(`report.samples=${text}`, `report.samples must be a whole number from 1 on, not "${text}".`);
  f('hosts.hosts=0', 'hosts.hosts must be a whole number from 1 on, not "0".');
  f('tails.targets=2', 'tails.targets must be 0 or 1, not "2".');
  f('billion.keys=3', 'billion.keys must be a whole number from 4 to 10, not "3".');
  f('api.wrongPercent=101', 'api.wrongPercent must be a whole number of percent, 0 to 100, not "101".');
  f('mqtt.workers=1.5', 'mqtt.workers must be a whole number from 0 on, not "1.5".');
  f(
    'connections.devices=1000',
    'connections.stormDevices must be below connections.devices: the others stay connected.',
  );
  for (const right of ['mqtt.workers=0', 'mqtt.warmupSeconds=0', 'rpc.rate=0.5', 'autocannon.rate=0', 'hostile.only=0'])
    f(right, '');
});

test('a figure has three digits, and a tiny one is not shown as zero', () => {
  const values = [0, 0.0031, 0.0049, 0.005, 1.234, 12.34, 123.4, 1234.5, 2e6, -0.001, Number.NaN];
  const texts = ['0', '0.003', '0.005', '0.01', '1.23', '12.3', '123', '1 235', '2 000 000', '-0.001', '-'];
  expect(values.map(figure)).toEqual(texts);
});

test('a range of equal figures is one figure', () => {
  expect([rangeText([11.04, 11]), rangeText([10, 12, 11]), rangeText([7])]).toEqual(['11.0', '10 to 12', '7']);
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

test('a result has the settings of its scenario, and those of other groups that the scenario reads', () => {
  const all = loadBenchSettings(['http.sockets=7'], 'levels');
  const levels = settingsReadBy('levels', all);
  expect(Object.keys(levels).sort()).toEqual(['gateway', 'http', 'levels', 'mqtt', 'storeAcks']);
  expect(levels.http.sockets).toBe(7);
  expect(Object.keys(settingsReadBy('storeacks', all)).sort()).toEqual(['http', 'storeAcks']);
  expect(settingsReadBy('micro', all)).toEqual({});
});
