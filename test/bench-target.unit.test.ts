/**
 * Rules of `npm run bench -- … --target` and of `compare`: the meaning of the flags, when a rate holds, and which
 * differences are noise.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { callerPath } from '../bench/caller-path.ts';
import { parseCommandLine } from '../bench/command-line.ts';
import { Counting } from '../bench/load/counting.ts';
import { saidOf } from '../bench/load/counts.ts';
import { LinesRequest } from '../bench/load/http/lines.ts';
import { StatusReader } from '../bench/load/http/status-reader.ts';
import { lineOf } from '../bench/load/live-view.ts';
import { reasonString, refusalText } from '../bench/load/mqtt/refusals.ts';
import type { LoadResult } from '../bench/load/processes.ts';
import { lastSecond, pausesOf } from '../bench/load/silence.ts';
import type { Second } from '../bench/load/timeline.ts';
import { beginScenario, measuring, say, sayLive, writeUnfinished } from '../bench/report.ts';
import { barChart, lineChart } from '../bench/result/chart.ts';
import { compareResults, errorOf, verdictOf } from '../bench/result/compare.ts';
import { loadsOf } from '../bench/result/loads.ts';
import { pageOf } from '../bench/result/page.ts';
import type { ResultFile } from '../bench/result/result-file.ts';
import { UsageError } from '../bench/settings.ts';
import { planOf, targetOrder } from '../bench/target/order.ts';
import { Platform } from '../bench/target/platform.ts';
import { findRate, holds, missedText, spoiledText } from '../bench/target/search.ts';

const httpOrder = (...args: string[]) => {
  return targetOrder('http', parseCommandLine(['http', '--target', 'http://host:8080', ...args]).flags);
};

function loadOf(members: Partial<LoadResult>): LoadResult {
  const latency = { p50Ms: 1, p90Ms: 2, p99Ms: 3, p999Ms: 4, maxMs: 5 };
  const counts = { accepted: 1000, requestsPerSecond: 100, broken: 0, unsure: 0, unanswered: 0, unsent: 0 };
  const shares = { generatorCpuShare: 0.1, sentLateP99Ms: 0, machineIdleShare: 0.9, startedAtMs: 0, invalid: '' };
  const times = { seconds: [], leadSeconds: 0, measuredSeconds: 30 };
  const silence = { connections: 10, pauses: [], earlyEnd: undefined };
  return { ...counts, ...shares, ...times, ...silence, latency, bars: [], refused: {}, between: () => 0, ...members };
}

/** Seconds of a load with these rates, the first of which has the number 1. */
function secondsOf(rates: number[]): Second[] {
  return rates.map((rate, n) => {
    const latency = { p50Ms: 1, p99Ms: 3, maxMs: 5 };
    return {
      second: n + 1,
      rate,
      refused: {},
      broken: 0,
      waiting: 0,
      silentSeconds: 0,
      ...latency,
      cpu: {},
      memoryMiB: {},
      gauges: {},
    };
  });
}

test('a flag is a setting without a target, and an order with one', () => {
  expect(parseCommandLine(['http', '--duration', '2m', '--connections', '64']).overrides).toEqual([
    'http.seconds=120',
    'http.sockets=64',
  ]);
  expect(() => parseCommandLine(['http', '--rate', '5'])).toThrow('--rate goes with --target.');
  expect(() => parseCommandLine(['lists', '--rates', '5'])).toThrow('lists has no --rates');
  expect(() => parseCommandLine(['http', '--against', 'x'])).toThrow('--against is a flag of versions, not of http.');
  expect(() => parseCommandLine(['quick', '--peer', 'a=b'])).toThrow('--peer is a flag of peers, not of quick.');
  expect(() => parseCommandLine(['peers', '--user', 'me'])).toThrow('--user goes with --peer.');
  const order = httpOrder('--token', 'a,b', '--rate', '500', '--duration', '10s', '--ramp', '500ms');
  expect(order).toMatchObject({ server: { host: 'host', port: 8080 }, tokens: ['a', 'b'], devices: 2, connections: 2 });
  expect(order).toMatchObject({ rate: 500, seconds: 10, rampSeconds: 0.5 });
});

test('help before or after a scenario is the help of that scenario', () => {
  for (const args of [
    ['help', 'http'],
    ['http', '--help'],
    ['http', '-h'],
  ])
    expect(parseCommandLine(args)).toMatchObject({ name: 'http', overrides: [], isHelp: true });
  expect(parseCommandLine(['help'])).toMatchObject({ name: '', isHelp: true });
});

test('the sign-in of --peer is no setting of the comparison', () => {
  const signIn = ['--user', 'me@x.org', '--password', 'secret'];
  const line = parseCommandLine(['peers', '--peer', 'thingsboard=http://host:8080', ...signIn, '--seconds', '2']);
  const flags = { user: 'me@x.org', password: 'secret' };
  expect(line).toMatchObject({ peer: 'thingsboard=http://host:8080', flags, overrides: ['peers.seconds=2'] });
  const secured = parseCommandLine(['peers', '--peer', 'tb=https://host', '--api-key', 'k', '--insecure']);
  expect(secured).toMatchObject({ peer: 'tb=https://host', flags: { 'api-key': 'k', insecure: true }, overrides: [] });
});

test('a message of lines has a record of each device, each time with another ts', () => {
  const request = new LinesRequest(['a', 'b'], { firstTs: 1_700_000_000_000, stepMs: 100 }, 7);
  const bodies = [0, 1].map(() => {
    const [head = '', body = ''] = request.next().toString('latin1').split('\r\n\r\n');
    expect(head).toContain(`Content-Length: ${body.length}`);
    return body;
  });
  for (const [n, body] of bodies.entries()) {
    const lines = ['a', 'b'].map((device) => {
      const fields = 'temperature=21\\.\\d0,humidity=48\\.\\d0,pressure=1013\\.25,battery=87i';
      return `telemetry,device=${device} ${fields} ${1_700_000_000_000 + n * 100}\\n`;
    });
    expect(body).toMatch(new RegExp(`^${lines.join('')}$`));
  }
});

test.each([
  [['--rate', '5'], 'Give --user (and --password) or --api-key to create devices'],
  [['--token', 'a', '--user', 'b'], 'not both'],
  [['--user', 'b'], 'Give --password, or set BENCH_PASSWORD.'],
  [['--token', 'a', '--rate', 'fast'], '--rate must be a whole number from 1 on, not "fast".'],
  [['--token', 'a', '--find-rate'], '--find-rate needs its bound'],
  [['--token', 'a', '--p99-max', '0ms'], '--p99-max must be more than 0.'],
  [['--token', ','], '--token has no token.'],
  [['--tokens', '/dev/null'], '--tokens: /dev/null has no token.'],
  [['--token', 'a', '--rate', 'max', '--ramp', '5s'], '--ramp needs a --rate'],
  [['--token', 'a', '--duration', 'long'], '--duration must be a time such as 30s'],
  [['--token', 'a', '--seconds', '4'], 'With --target there is no --seconds: `npm run bench -- http --help`'],
  [['--user', 'b', '--password', 'c', '--rest', 'host:8080'], '--rest must be an address such as http://'],
  [['--token', 'a,b', '--connections', '3'], '--connections 3 needs as many devices, of which there are 2.'],
  [['--user', 'b', '--devices', '1', '--processes', '2'], '--processes 2 needs as many devices, of which there are 1.'],
  [['--token', 'a', '--devices', '9'], '--devices creates devices, which goes with --user or --api-key'],
  [['--token', 'a', '--find-rate', '--p99-max', '9ms', '--repeat', '2'], '--repeat has no effect with --find-rate'],
  [['--token', 'a', '--target', 'http://host/base'], '--target must be an address without a path'],
  [['--token', 'a', '--window', '4'], '--window is a flag of mqtt and gateway, not of http.'],
  [['--token', 'a', '--payload', '3'], '--payload must be a whole number from 4 to 10'],
  [
    ['--token', 'a', '--target', 'mqtt://host'],
    '--target of http must be an address such as http://localhost:8080 or https',
  ],
  [['--token', 'a', '--ca', 'ca.pem'], '--ca goes with an address that begins with https or mqtts.'],
  [['--token', 'a', '--insecure'], '--insecure goes with an address that begins with https or mqtts.'],
  [['--token', 'a', '--target', 'https://host', '--ca', '/no/such.pem'], '--ca: ENOENT'],
  [['--token', 'a', '--target', 'https://host', '--ca', 'package.json'], 'package.json has no certificate in PEM.'],
  [['--user', 'b', '--password', 'c', '--api-key', 'd'], 'Give --user and --password, or --api-key, not both.'],
  [['--token', 'a', '--api-key', 'd'], 'Give --api-key to create devices, or tokens, not both.'],
  [['--token', 'a', '--give-up', '0s'], '--give-up must be at least 1s.'],
  [['--user', 'b', '--password', 'c', '--remove', 'pump'], '--remove must be a name that a run has printed'],
  [['--token', 'a', '--remove', 'bench-1a2b3c-'], '--remove needs --user or --api-key.'],
])('%j is answered with what to write', (args, message) => {
  expect(() => httpOrder(...args)).toThrow(message);
});

test('the plan of a dry run names what is created, and what cannot be seen from outside', () => {
  const plan = new Map(planOf(httpOrder('--user', 'me@x.org', '--password', 'secret', '--dry-run')));
  expect(plan.get('devices')).toBe('100 devices, created by me@x.org at http://host:8080, removed at the end');
  expect(plan.get('not seen')).toContain("the server's machine, its CPU, memory and disk");
  expect([...plan.values()].join()).not.toContain('secret');
});

test('gateways that exist already get devices that stay', () => {
  const args = ['gateway', '--target', 'mqtt://host', '--token', 'a,b', '--children', '5'];
  const plan = new Map(planOf(targetOrder('gateway', parseCommandLine(args).flags)));
  expect(plan.get('devices')).toBe(
    '2 gateways given by their tokens; their messages create 5 devices of each, which stay',
  );
});

test('a search says what the rate above its result has missed', () => {
  const at = (rate: number, members: Partial<LoadResult>) => ({ rate, load: loadOf(members), idleBefore: 1 });
  const all = [at(100, {}), at(400, { invalid: 'slow' }), at(200, { unanswered: 2, invalid: 'slower' })];
  expect(missedText(all, 100, 25)).toBe('missed at 200 messages/s: 2 failed; slower');
  expect(missedText([at(100, {}), at(200, {})], 100, 2)).toBe('missed at 200 messages/s: p99 3 ms');
  expect(missedText([at(100, {})], 100, 25)).toBe('');
});

test('an answer after the measured time counts for the latency, and one that never came is a failure', () => {
  const counting = new Counting(
    () => 0,
    () => 0,
  );
  counting.begin();
  counting.beginMeasuring();
  const dueAt = performance.now();
  counting.acknowledged(dueAt, dueAt + 5);
  counting.endMeasuring();
  counting.acknowledged(dueAt, dueAt + 2_000);
  counting.acknowledged(performance.now(), performance.now() + 9_000);
  counting.giveUp(3);
  const { measured, accepted, maxMicroseconds, unanswered, unsure } = counting.end();
  expect({ measured, accepted, unanswered, unsure }).toEqual({ measured: 1, accepted: 3, unanswered: 3, unsure: 3 });
  expect(maxMicroseconds).toBeCloseTo(2_000_000, -3);
  expect(holds({ rate: 100, load: loadOf({ unanswered }), idleBefore: 1 }, 0)).toBe(false);
  expect(holds({ rate: 100, load: loadOf({}), idleBefore: 1 }, 0)).toBe(true);
});

test('a live line names the most frequent refusals, and for how long nothing was acknowledged', () => {
  const [second] = secondsOf([90]);
  const refused = { '503: Slow down.': 5, '503: Full.': 4, 'ECONNRESET at the connect': 2, 401: 1, 429: 1 };
  expect(lineOf({ ...second!, refused }, 30)).toBe(
    '1 s, 29 s left | 90/s | p50 1 p99 3 ms | refused 9 × 503, 2 × ECONNRESET at the connect, 1 × 401, 1 others',
  );
  expect(lineOf({ ...second!, second: 31 }, 30)).toBe('31 s, waiting for the last answers | 90/s | p50 1 p99 3 ms');
  expect(lineOf({ ...second!, rate: 0, silentSeconds: 4 }, 0)).toBe('1 s | 0/s | nothing acknowledged for 4 s');
});

test('a pause is a second and more in which messages were due, of all processes together', () => {
  const tenths = (...seconds: number[]) => seconds.flatMap((rate) => Array.from({ length: 10 }, () => rate / 10));
  const pace = { rate: 20, rampMs: 0 };
  const first = { startedAtMs: 1_000, tenths: tenths(10, 0, 0, 10) };
  const second = { startedAtMs: 1_500, tenths: tenths(10, 0, 10) };
  expect(pausesOf([first, second], pace, 4)).toEqual([{ fromSecond: 1.5, seconds: 1 }]);
  expect(pausesOf([first], pace, 6.5)).toEqual([
    { fromSecond: 1, seconds: 2 },
    { fromSecond: 4, seconds: 2.5 },
  ]);
  // A rate of one message/s has gaps of a second.
  expect(pausesOf([first], { rate: 1, rampMs: 0 }, 4)).toEqual([]);
  expect(pausesOf([first], { rate: 0, rampMs: 0 }, 4)).toEqual([{ fromSecond: 1, seconds: 2 }]);
  expect(pausesOf([{ startedAtMs: 0, tenths: [] }], pace, 3)).toEqual([{ fromSecond: 0, seconds: 3 }]);
  expect([lastSecond([first, second]), lastSecond([{ startedAtMs: 0, tenths: [] }])]).toEqual([4, 0]);
});

test('refusals in MQTT are words, with what the server says of them', () => {
  expect(refusalText('CONNACK', 5, '')).toBe('CONNACK 5 (not authorized)');
  expect(refusalText('DISCONNECT', 4, '')).toBe('DISCONNECT 4');
  const [user, reason] = ['\x26\0\x01a\0\x01b', '\x1f\0\x04full'];
  const bytes = Buffer.from(`\x20${String.fromCharCode(user.length + reason.length)}${user}${reason}`, 'latin1');
  expect(refusalText('PUBACK', 0x97, reasonString(bytes, 1, bytes.length))).toBe('PUBACK 0x97 (quota exceeded): full');
  for (let end = 1; end < bytes.length; end += 1) expect(['', 'f', 'fu', 'ful']).toContain(reasonString(bytes, 1, end));
});

test('a long sentence of a server is cut where an ellipsis shows it', () => {
  expect(saidOf('Slow\n  down.')).toBe('Slow down.');
  expect(saidOf('a'.repeat(160))).toBe('a'.repeat(160));
  expect(saidOf('a'.repeat(161))).toBe(`${'a'.repeat(159)}…`);
});

test('a path is that of the caller, also when npm has changed the directory', () => {
  try {
    vi.stubEnv('INIT_CWD', '/home/me');
    vi.stubEnv('npm_lifecycle_event', 'bench');
    expect([callerPath('a.json'), callerPath('/tmp/a.json')]).toEqual(['/home/me/a.json', '/tmp/a.json']);
    // Another script of npm has started this command from elsewhere.
    vi.stubEnv('npm_lifecycle_event', 'test');
    expect(callerPath('a.json')).toBe(join(process.cwd(), 'a.json'));
  } finally {
    vi.unstubAllEnvs();
  }
});

test('a search beside other work says so', () => {
  const at = (idleBefore: number) => ({ rate: 1, load: loadOf({}), idleBefore });
  expect(spoiledText([at(0.9), at(1)])).toBe('');
  expect(spoiledText([at(0.3)])).toMatch(/^in the second before the load other work used 70 % of this machine/);
  expect(spoiledText([at(0.9), at(0.5), at(0.25)])).toContain('before 2 of 3 loads other work used 50 to 75 %');
});

test('the search finds the highest rate whose p99 holds, and one below where it begins', async () => {
  for (const [capacity, begin] of [
    [7_300, 1_000],
    [90, 1_000],
    // Neighbours differ by more than the search asks for.
    [8, 10],
  ] as const) {
    const measured: number[] = [];
    await findRate({ rate: begin, p99MsMax: 25 }, async (rate) => {
      measured.push(rate);
      const p99Ms = rate <= capacity ? 10 : 200;
      return { rate, load: loadOf({ latency: { ...loadOf({}).latency, p99Ms } }), idleBefore: 1 };
    });
    const best = Math.max(...measured.filter((rate) => rate <= capacity));
    expect(best).toBeGreaterThan(capacity / 1.06);
    expect(measured.length).toBeLessThan(12);
    expect(new Set(measured).size).toBe(measured.length);
  }
});

test('a difference within the noise of either result is no difference', () => {
  const rate = (value: number, error: number) => ({ name: 'rate', value, error, isHigherBetter: true });
  const p99 = (value: number, error: number) => ({ name: 'p99', value, error, isHigherBetter: false });
  expect(verdictOf(rate(1000, 100), rate(900, 100))).toBe('same');
  expect(verdictOf(rate(1000, 10), rate(900, 10))).toBe('worse');
  expect(verdictOf(rate(1000, 0), rate(1015, 0))).toBe('same');
  expect(verdictOf(p99(20, 1), p99(10, 1))).toBe('better');
});

interface Compared {
  scenario?: string;
  name?: string;
  load: Partial<LoadResult>;
  members?: object;
  settings?: object;
}

/** Compares results of one load each, the first with the others; returns what was printed and the verdict of all. */
function compared(...results: Compared[]) {
  const directory = mkdtempSync(join(tmpdir(), 'millrace-compare-'));
  const machine = { cores: 2, cpu: 'c', memoryGiB: 4, kernel: '6.1', node: 'v20', command: 'npm run bench' };
  const paths = results.map(({ scenario = 'http', name = 'peak', load, members, settings = {} }, n) => {
    const path = join(directory, `${n}.json`);
    const result = { [name]: loadOf(load), ...members };
    writeFileSync(path, JSON.stringify({ scenario, at: 'now', machine, commit: '', settings, result }));
    return path;
  });
  const printed = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  try {
    const isGood = compareResults(paths);
    return { isGood, lines: printed.mock.calls.map(([line]) => String(line)).join('') };
  } finally {
    printed.mockRestore();
    rmSync(directory, { recursive: true });
  }
}

/** Of a closed loop. */
const steady = (rate: number): Partial<LoadResult> => {
  return { requestsPerSecond: rate, seconds: secondsOf([rate, rate]), sentLateP99Ms: Number.NaN };
};

test('results of which one was interrupted, and one has no load of the first, are compared with a warning', () => {
  const interrupted = { load: steady(500), members: { isInterrupted: true } };
  const { lines, isGood } = compared({ load: steady(1000) }, { name: 'other', load: steady(5) }, interrupted);
  expect(lines).toContain('WARNING: B has no load of A\n');
  expect(lines).toContain('WARNING: C was interrupted');
  expect(lines).toMatch(/^peak acknowledged\/s .* C 500 .* worse *$/m);
  expect(isGood).toBe(false);
});

test('loads that a later result lacks are named, and a difference of nothing has no sign', () => {
  const both = { load: steady(1000), members: { half: loadOf(steady(500)), low: loadOf(steady(5)) } };
  const { lines } = compared(both, { load: { ...steady(1000), requestsPerSecond: 999.9 } });
  expect(lines).toContain('WARNING: B lacks 2 of 3 loads of A: "half", "low"\n');
  expect(lines).toMatch(/^peak acknowledged\/s .* {2}0\.0 % .* same *$/m);
});

test('the settings that differ are named with both values, and so are messages without an answer', () => {
  const [first, other] = [
    { rate: 100, server: { port: 1 }, qos: 1 },
    { rate: 150, server: { port: 2 }, qos: 1 },
  ];
  const { lines } = compared(
    { load: steady(100), settings: first },
    { load: { ...steady(150), unanswered: 4 }, settings: other },
  );
  expect(lines).toContain('WARNING: the settings of A and B differ: rate 100 → 150, server.port 1 → 2\n');
  expect(lines).toContain('WARNING: B: peak: 4 messages were never answered\n');
});

test('settings of an older result, without the name of their group or with all groups, are compared with new ones', () => {
  const now = { http: { seconds: 5, sockets: 64 }, autocannon: { rate: 0 } };
  const load = steady(100);
  for (const before of [
    { seconds: 9, sockets: 64 },
    { ...now, http: { ...now.http, seconds: 9 }, soak: { minutes: 5 } },
  ])
    expect(compared({ load, settings: before }, { load, settings: now }).lines).toContain(
      'WARNING: the settings of A and B differ: http.seconds 9 → 5\n',
    );
  expect(compared({ load, settings: now }, { load, settings: now }).lines).not.toContain('WARNING');
});

test('of another scenario its name is said, not each of its settings', () => {
  const { lines } = compared(
    { load: steady(100), settings: { rate: 100 } },
    { scenario: 'soak', load: steady(100), settings: { minutes: 5 } },
  );
  expect(lines).toContain('WARNING: A is of http, B of soak\n');
  expect(lines).not.toContain('the settings of A and B differ');
});

test('the seconds of a warm-up and of the end are no noise', () => {
  const times = { leadSeconds: 2, measuredSeconds: 4 };
  const load = (rate: number) => {
    const seconds = secondsOf([0, rate / 2, rate - 5, rate + 5, rate, rate, 0]);
    return { load: { ...steady(rate), seconds, ...times } };
  };
  expect(compared(load(1000), load(900)).lines).toMatch(/^peak acknowledged\/s .* -10.0 % .* worse *$/m);
});

test('a rate that was asked for and kept is no figure of the server; one that was not kept is', () => {
  const asked = (rate: number) => ({ ...steady(rate), sentLateP99Ms: 1 });
  const kept = compared({ load: asked(1000) }, { load: asked(800) });
  expect(kept.lines).toMatch(/^peak acknowledged\/s .* -20.0 % +- +as asked *$/m);
  expect(kept.lines).toContain('WARNING: peak had 1 000 messages/s in A, 800 in B: its latency and CPU are those of');
  expect(kept.isGood).toBe(true);
  const slow = { ...asked(800), invalid: '800 of 1000 messages/s were answered' };
  expect(compared({ load: asked(1000) }, { load: slow }).isGood).toBe(false);
});

test('results without a common load are refused with the names of their loads', () => {
  const compare = () => compared({ load: steady(1) }, { name: 'load 1, unfinished', load: steady(1) });
  expect(compare).toThrow('no load in common: A has "peak"; B has "load 1, unfinished".');
});

test('an interrupted result is not compared with a whole one, but with another interrupted one', () => {
  const unfinished = { name: 'load 1, unfinished', load: steady(1000), members: { isInterrupted: true } };
  expect(() => compared({ load: steady(1000) }, unfinished)).toThrow(
    'B was interrupted before the result, and cannot be compared with a whole result',
  );
  const { lines, isGood } = compared(unfinished, { ...unfinished, load: steady(500) });
  expect(lines).toMatch(/^load 1, unfinished acknowledged\/s .* B 500 .* worse *$/m);
  expect(isGood).toBe(false);
});

test.each([
  ['', 'is damaged, or no JSON'],
  ['{"scenario":"http","at":"now","machine":{"cores":2', 'is damaged, or no JSON'],
  ['null', 'is not a whole result'],
  ['[]', 'is not a whole result'],
  ['{"scenario":"http","at":"now","settings":{},"result":{}}', 'is not a whole result'],
  ['{"scenario":"http","at":"now","machine":{},"settings":{},"result":{}}', 'is not a whole result'],
  [
    '{"scenario":"http","at":"now","machine":{"cores":2,"cpu":"c","node":"v20"},"settings":{},"result":null}',
    'is not a whole result',
  ],
])('of a file with %j compare says that it %s', (text, sentence) => {
  const directory = mkdtempSync(join(tmpdir(), 'millrace-compare-'));
  const path = join(directory, 'a.json');
  try {
    writeFileSync(path, text);
    expect(() => compareResults([path, path])).toThrow(UsageError);
    expect(() => compareResults([path, path])).toThrow(`${path} ${sentence}`);
    expect(() => compareResults([directory, path])).toThrow(/directory.* Give a JSON file/);
    expect(() => compareResults([`${path}x`, path])).toThrow(`There is no file ${path}x. Give a JSON file`);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test('a load that nothing answers is worse, and one that says little about its server has a warning', () => {
  const silent = { p50Ms: Number.NaN, p90Ms: Number.NaN, p99Ms: Number.NaN, p999Ms: Number.NaN, maxMs: 0 };
  const failed = { latency: silent, refused: { 503: 7 }, broken: 2, invalid: '0 of 1000 messages/s were answered' };
  const { lines, isGood } = compared({ load: steady(1000) }, { load: { ...steady(0), ...failed } });
  expect(lines).toContain('WARNING: B: peak is INVALID: 0 of 1000 messages/s were answered\n');
  expect(lines).toContain('WARNING: B: peak: 9 messages were refused or lost their connection\n');
  expect(lines).toMatch(/^peak acknowledged\/s .* B 0 .* -100.0 % .* worse *$/m);
  expect(isGood).toBe(false);
});

test('few seconds prove less than many, and one second proves nothing', () => {
  expect(errorOf([10, 12, 14])).toBeCloseTo((4.3 * 2) / Math.sqrt(3));
  expect(errorOf(Array.from({ length: 31 }, (_, n) => (n % 2 === 0 ? 1 : 3)))).toBeCloseTo(0.37, 2);
  const single = (value: number) => ({ name: 'rate', value, error: errorOf([value]), isHigherBetter: true });
  expect(verdictOf(single(1000), single(500))).toBe('unknown');
});

test('what a scenario without a result has printed and measured is not of the next one', () => {
  const printed = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  try {
    say('of the first scenario');
    measuring('of the first scenario', () => 1);
    beginScenario();
    expect(writeUnfinished('second', {})).toBe(false);
  } finally {
    printed.mockRestore();
  }
});

test('a line that is printed takes the place of the line that a wait rewrites', () => {
  const written = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  try {
    sayLive('removing');
    say('removed');
    say('written');
    const clear = '\r\x1b[2K';
    expect(written.mock.calls.map(([text]) => text)).toEqual([`${clear}removing`, clear, 'removed\n', 'written\n']);
  } finally {
    written.mockRestore();
    beginScenario();
  }
});

test('an answer counts when all of it has arrived, whatever its body and its segments are', () => {
  const reader = new StatusReader();
  const read = (...pieces: string[]) => pieces.map((piece) => reader.read(Buffer.from(piece), piece.length));
  const empty = 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n';
  expect(read(empty, empty)).toEqual([200, 200]);
  expect(read('HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n', '{"accepted":true}', empty)).toEqual([0, 200, 200]);
  const chunked = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n';
  expect(read(chunked, '2\r\n{}\r\n', '0\r\n\r\n', empty)).toEqual([0, 0, 200, 200]);
  expect(read('HTTP/1.1 204 No Content\r\n\r\n')).toEqual([200]);
  expect(read('HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n', '{}', empty)).toEqual([0, 429, 200]);
  const body = '{"status":429,"message":"Slow\\n down."}';
  expect(read(`HTTP/1.1 429 Too Many Requests\r\nContent-Length: ${body.length}\r\n\r\n${body}`)).toEqual([
    '429: Slow down.',
  ]);
  const chunks = [body.slice(0, 9), body.slice(9)].map((text) => `${text.length.toString(16)};a=b\r\n${text}\r\n`);
  const head = 'HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\n\r\n';
  expect(read(head, ...chunks, '0\r\n\r\n')).toEqual([0, 0, 0, '429: Slow down.']);
});

test('bytes of another protocol are a refusal in words', () => {
  const read = (bytes: string) => new StatusReader().read(Buffer.from(bytes), bytes.length);
  const words = 'no answer in HTTP (is it a port of HTTP?)';
  expect(read('220 mail.example.org ESMTP\r\n')).toBe(words);
  expect(read('HTTP nonsense\r\n\r\n')).toBe(words);
});

test('a REST interface that answers with a page is named, with the beginning of the page', async () => {
  const server = createServer((request, response) => {
    request.resume().once('end', () => response.end('<html>\n  Please sign in</html>'));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const rest = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const sentence = `${rest} answered 200 without JSON: <html> Please sign in</html>. Is it the REST interface?`;
  const signIn = { rest, user: 'me', password: 'secret', tls: undefined };
  try {
    for (const apiKey of ['', 'key'])
      await expect(Platform.signIn({ ...signIn, apiKey })).rejects.toThrow(new UsageError(sentence));
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test('a load is named after its server and round, whatever else was measured', () => {
  const rounds = [{ load: loadOf({}) }, { load: loadOf({}) }];
  const row = (name: string) => ({ name, window: 16, rounds });
  const kinds = [
    { name: 'http', millrace: { name: 'Millrace', turns: rounds }, peers: [{ name: 'Aedes', turns: rounds }] },
  ];
  const pathsOf = (result: object) => loadsOf(result).map(({ path }) => path);
  const both = pathsOf({ rows: [row('Mosquitto'), row('Millrace')], ratio: 2 });
  expect(both).toContain('Mosquitto, window 16, round 2');
  expect(pathsOf({ rows: [row('Millrace')] })).toEqual(both.slice(2));
  expect(pathsOf({ kinds })).toEqual([
    'http, millrace, turn 1',
    'http, millrace, turn 2',
    'http, Aedes, turn 1',
    'http, Aedes, turn 2',
  ]);
  expect(pathsOf({ many: { peak: loadOf({}) }, measurements: [{ rate: 5, load: loadOf({}) }] })).toEqual([
    'many, peak',
    'measurement 1',
  ]);
});

test('the page of a result has its charts in one file, without scripts and with nothing unescaped', () => {
  const second = (n: number): Second => ({
    ...{ second: n, rate: 100 * n, refused: {}, broken: 0, waiting: 0, silentSeconds: 0, p50Ms: 1, p99Ms: 2, maxMs: 3 },
    ...{ cpu: { workers: 0.5 }, memoryMiB: { workers: 100 }, gauges: { backlogBytes: 2 ** 20, parts: 7 } },
  });
  const machine = { cores: 2, cpu: 'a <fast> one', memoryGiB: 4, kernel: '6.1', node: 'v20', command: 'npm run bench' };
  const file: ResultFile = {
    ...{ scenario: 'http', at: '2026-01-01T00:00:00Z', machine, commit: 'abc', version: '0.1.0', settings: {} },
    printed: ['1 & 2'],
    result: { peak: loadOf({ seconds: [second(1), second(2)], bars: [{ untilMs: 1.5, count: 3 }] }) },
  };
  const page = pageOf(file);
  expect(page.match(/<svg/g)).toHaveLength(7);
  expect(page).toContain('<meta name="viewport" content="width=device-width, initial-scale=1">');
  expect(page).toContain('color-scheme: light dark');
  expect(page).toContain('<h2 id="load-1">peak</h2>');
  expect(page).not.toContain('<h2>Loads</h2>');
  expect(page).toContain('a &lt;fast&gt; one');
  expect(page).toContain('1 &amp; 2');
  expect(page).not.toMatch(/<script|https?:|NaN|undefined/);
  expect(page).toContain('<th>measured</th><td>2026-01-01T00:00:00Z</td>');
  const begun = pageOf({ ...file, startedAt: '2025-12-31T23:59:00Z', loadAverageBefore: 7.25 });
  const times = '2025-12-31T23:59:00Z to 2026-01-01T00:00:00Z; load average before 7.3, on 2 processors';
  expect(begun).toContain(`<th>measured</th><td>${times}</td>`);
  // What missed its target comes before every figure.
  expect(page).not.toContain('Targets missed');
  const missing = pageOf({ ...file, result: { ...file.result, missed: ['ack: p99 31 ms, target < 25'] } });
  expect(missing).toContain('<ul class="missed"><li>ack: p99 31 ms, target &lt; 25</li></ul>');
  expect(missing.indexOf('Targets missed')).toBeLessThan(missing.indexOf('<pre>'));
});

test('values of a chart are readable whatever their size: labels of few digits, and a logarithmic axis of latencies', () => {
  const labels = (chart: string) => [...chart.matchAll(/text-anchor="end">([^<]*)</g)].map(([, label]) => label);
  const line = (...values: (number | undefined)[]) => [{ name: 'p99', values }];
  expect(labels(lineChart('CPU, cores', line(0.001, 0.0037)))).toEqual([
    '0',
    '0.001',
    '0.002',
    '0.003',
    '0.004',
    '2 s',
  ]);
  expect(labels(lineChart('Rate', line(0, 2_400_000))).slice(0, 5)).toEqual(['0', '1 M', '2 M', '3 M', '4 M']);
  const latency = (...values: number[]) => lineChart('Latency, ms', line(...values), { isLatency: true });
  expect(latency(1, 49)).not.toContain('logarithmic');
  const wide = latency(0.4, 3_000, 20);
  expect(wide).toContain('Latency, ms, logarithmic');
  expect(labels(wide)).toEqual(['0.1', '1', '10', '100', '1 k', '10 k', '3 s']);
  // A second between two without a figure is a dot.
  expect(lineChart('Rate', line(1, undefined, 5, undefined, 2, 3)).match(/<circle/g)).toHaveLength(2);
  // A bar of one message is seen beside one of a million.
  const heights = [
    ...barChart(
      'Bars',
      [1, 1e6, 0].map((value) => ({ name: '1', value })),
    ).matchAll(/height="([\d.]+)"/g),
  ];
  expect(heights.map(([, height]) => Number(height))).toEqual([1.5, 158, 0]);
});

test('moments of a chart have numbers, and the page says once what each one was', () => {
  const two = [
    { name: 'a <killed> worker', atMs: 1_500 },
    { name: 'reports', atMs: 2_500 },
    { name: 'after the load', atMs: 9_000 },
  ];
  const machine = { cores: 2, cpu: 'one', memoryGiB: 4, kernel: '6.1', node: 'v20', command: 'npm run bench' };
  const page = pageOf({
    ...{ scenario: 'day', at: '2026-01-01T00:00:00Z', machine, commit: 'abc', version: '0.1.0', settings: {} },
    printed: [],
    result: {
      events: two,
      peak: loadOf({ seconds: secondsOf([5, 6, 7]), pauses: [{ fromSecond: 0.5, seconds: 1.2 }] }),
    },
  });
  const moments = [
    ...['nothing is acknowledged for 1.2 s, second 0.5', 'a &lt;killed&gt; worker, second 1.5'],
    ...['acknowledged again, second 1.7', 'reports, second 2.5'],
  ];
  expect(page).toContain(`<ol>${moments.map((moment) => `<li>${moment}</li>`).join('')}</ol>`);
  expect(page.match(/text-anchor="middle">1</g)).toHaveLength(2);
});

test('a page of many loads has a link to the charts of each', () => {
  const machine = { cores: 2, cpu: 'one', memoryGiB: 4, kernel: '6.1', node: 'v20', command: 'npm run bench' };
  const load = loadOf({ seconds: secondsOf([5, 6]) });
  const page = pageOf({
    ...{ scenario: 'api', at: '2026-01-01T00:00:00Z', machine, commit: 'abc', version: '0.1.0', settings: {} },
    ...{ printed: [], result: { peak: load, before: load, after: load } },
  });
  for (const [n, name] of ['peak', 'before', 'after'].entries()) {
    expect(page).toContain(`<li><a href="#load-${n + 1}">${name}</a></li>`);
    expect(page).toContain(`<h2 id="load-${n + 1}">${name}</h2>`);
  }
});
