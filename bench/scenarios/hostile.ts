/**
 * For each resource that callers share, an attacker of one tenant beside a victim of another. The promise: no call of
 * the victim is refused, and its p99 at most doubles beside what a neighbour process does that burns as much CPU as the
 * attacker costs. Three measures of the same calls: alone, beside the attacker, beside the neighbour.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Api, Device } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { requestBytes } from '../../test/harness/raw.ts';
import { call, makeTenant } from '../../test/harness/tenants.ts';
import { cpuBetween, cpuByRole } from '../cpu.ts';
import { type Running, startAttack, startBurner } from '../load/attack.ts';
import type { AttackOrder } from '../load/attack-process.ts';
import { totalOf } from '../load/counts.ts';
import { type CallsResult, judged, makeCalls, right } from '../load/rest/calls.ts';
import { type Cell, figure, say, table, writeResult } from '../report.ts';
import { type BenchSettings, UsageError } from '../settings.ts';

/** An address in another network, so that shares of addresses and of networks count it apart from the victim. */
const attackerAddress = '127.0.1.2';
const ratioMax = 2;
const leadMs = 500;
/** Time in which the connections of the attacker are closed and their requests end. */
const settleMs = 1_500;
const dayMs = 86_400_000;
const monday = Date.UTC(2025, 5, 2);

/** Small caps, so that one attacker can fill them; each is a setting. */
const caps = {
  HTTP_CONNECTIONS_MAX: '1000',
  HTTP_HELD_POLLS_MAX: '400',
  HTTP_BODY_BYTES_IN_FLIGHT_MAX: '67108864',
  WRONG_CREDENTIALS_PER_MINUTE_MAX: '30',
  // A command of the victim ends at its own deadline, so few connections keep its rate.
  MIN_SERVER_SIDE_RPC_TIMEOUT: '50',
  LOG_LEVEL: 'error',
};

interface Tenant {
  token: string;
  devices: Device[];
}

interface Contest {
  resource: string;
  victim: {
    port: number;
    /** Calls/s. */
    rate: number;
    connections: number;
    request(n: number): Buffer;
    expected: number;
  };
  attack: Omit<AttackOrder, 'localAddress' | 'requests'> & { requests: Buffer[] };
}

interface Measure {
  /** Right answers in the measured time. */
  calls: number;
  p50Ms: number;
  p99Ms: number;
  /** Calls without a right answer, those of the warm-up too. */
  failed: number;
  outcomes: Record<string, number>;
  /** CPU of each kind of process, in cores. */
  cores: Record<string, number>;
}

export async function runHostile(settings: BenchSettings): Promise<boolean> {
  const { points, floorMs, only } = settings.hostile;
  const engine = await startEngine({ workers: 1, reports: true, env: caps });
  try {
    const victim = await firstTenant(engine.api);
    const attacker = await secondTenant(engine.api);
    await fill(engine.api, victim, attacker, points);
    const contests = await contestsOf(engine, victim, attacker, points);
    if (only > contests.length) throw new UsageError(`hostile.only must be 0 to ${contests.length}, not ${only}.`);
    const results = [];
    for (const [n, contest] of contests.entries()) {
      if (only > 0 && only !== n + 1) continue;
      const result = await compete(engine, contest, settings.hostile);
      const limitMs = ratioMax * Math.max(result.neighbour.p99Ms, floorMs);
      const fault = faultOf(contest.attack.mode, result, limitMs);
      results.push({ resource: contest.resource, ...result, limitMs, fault, holds: fault === '' });
      const { alone, neighbour, attacked, cores, statuses } = result;
      say(
        `${n + 1}. ${contest.resource}, ${alone.calls} calls: ${verdictText(fault)}\n` +
          `   p99 ${figure(alone.p99Ms)} ms alone, ${figure(neighbour.p99Ms)} beside a neighbour of ${figure(cores)} cores, ` +
          `${figure(attacked.p99Ms)} (p50 ${figure(attacked.p50Ms)}) beside the attacker, who got ${statusesText(statuses)}\n` +
          `   cores alone: ${coresText(alone)}; beside the attacker: ${coresText(attacked)}`,
      );
    }
    say('');
    table(
      [
        'resource',
        'p99 ms alone',
        'neighbour',
        'attacked',
        'at most',
        'refused',
        'cores',
        'the attacker got',
        'verdict',
      ],
      results.map(({ resource, alone, neighbour, attacked, limitMs, cores, statuses, fault }): Cell[] => [
        resource,
        alone.p99Ms,
        neighbour.p99Ms,
        attacked.p99Ms,
        limitMs,
        attacked.failed,
        cores,
        statusesText(statuses),
        verdictText(fault),
      ]),
    );
    say(
      `\nThe promise: nothing of the victim is refused, and its p99 beside the attacker is at most ${ratioMax} times that ` +
        `beside a neighbour who burns the same CPU (what is below ${figure(floorMs)} ms counts as that).`,
    );
    writeResult('hostile', settings, { results });
    return results.length > 0 && results.every(({ holds }) => holds);
  } finally {
    await engine.destroy();
  }
}

function verdictText(fault: string): string {
  return fault === '' ? 'holds' : `FAILS: ${fault}`;
}

/** Says which part of the promise is broken, or why the run proves nothing; '' = the promise holds. */
export function faultOf(
  mode: AttackOrder['mode'],
  { attacked, statuses }: { attacked: Pick<Measure, 'p99Ms' | 'outcomes'>; statuses: Record<number, number> },
  limitMs: number,
): string {
  const hasAttacked = mode !== 'answers' || Object.keys(statuses).some((status) => Number(status) > 0);
  const slow = attacked.p99Ms <= limitMs ? '' : `p99 ${figure(attacked.p99Ms)} ms, at most ${figure(limitMs)}`;
  const idle = hasAttacked ? '' : 'the attacker got no answer, which proves nothing: give more seconds';
  return [outcomesText(attacked), slow, idle].filter((text) => text !== '').join('; ');
}

async function compete(engine: Engine, { victim, attack }: Contest, settings: BenchSettings['hostile']) {
  const { warmupSeconds, samples } = settings;
  const seconds = Math.max(settings.seconds, samples / victim.rate);
  const measure = async (): Promise<Measure & { cpuMs: number }> => {
    const outcomes: Record<string, number> = {};
    const pids = engine.pids();
    const before = cpuByRole(pids);
    const startedAt = performance.now();
    const result = await makeCalls({
      ...{ port: victim.port, connections: victim.connections, rate: victim.rate, warmupSeconds, seconds },
      callOf: (n) => ({
        request: victim.request(n),
        outcomeOf: (status, body) => (status === victim.expected ? right : refusalText(status, body)),
      }),
      seen: (outcome) => {
        outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
      },
    });
    const elapsedMs = performance.now() - startedAt;
    const spent = cpuBetween(before, cpuByRole(pids));
    const cpuMs = Object.values(spent).reduce((sum, each) => sum + each, 0);
    const cores = Object.fromEntries(Object.entries(spent).map(([role, ms]) => [role, ms / elapsedMs]));
    return { ...summary(result, outcomes), cores, cpuMs };
  };
  const beside = async (running: Running) => {
    const startedAt = performance.now();
    await sleep(leadMs);
    const measured = await measure();
    const ended = await running.stop();
    const elapsedMs = performance.now() - startedAt;
    await sleep(settleMs);
    return { ...measured, ended, elapsedMs };
  };
  const alone = await measure();
  const requests = attack.requests.map((bytes) => bytes.toString('base64'));
  const attacked = await beside(startAttack({ ...attack, localAddress: attackerAddress, requests }));
  const costMs = Math.max(0, attacked.cpuMs - alone.cpuMs) + attacked.ended.cpuMs;
  const cores = costMs / attacked.elapsedMs;
  const neighbour = await beside(startBurner(cores));
  return { alone, attacked, neighbour, cores, statuses: attacked.ended.statuses };
}

function summary(result: CallsResult, counts: Record<string, number>): Omit<Measure, 'cores'> {
  const { count: calls, p50Ms, p99Ms } = judged(result).answered;
  const refused = totalOf(result.refused);
  const outcomes = { ...counts, unanswered: result.unanswered, 'refused connects': refused };
  const failed = Object.entries(outcomes).reduce((sum, [outcome, count]) => sum + (outcome === right ? 0 : count), 0);
  return { calls, p50Ms, p99Ms, failed, outcomes };
}

/** Returns the status and the message of a refusal; the message names the cap. */
function refusalText(status: number, body: string): string {
  const message = /"message":"([^"]{0,60})/.exec(body)?.[1] ?? '';
  return `${status} ${message}`.trim();
}

function statusesText(statuses: Record<number, number>): string {
  const texts = Object.entries(statuses).map(([status, count]) => {
    return `${figure(count)} × ${status === '0' ? 'broken' : status}`;
  });
  return texts.join(', ') || 'no answer';
}

function outcomesText({ outcomes }: Pick<Measure, 'outcomes'>): string {
  return Object.entries(outcomes)
    .filter(([outcome, count]) => outcome !== right && count > 0)
    .map(([outcome, count]) => `${count} × ${outcome}`)
    .join(', ');
}

/** Processes that used at least a hundredth of a core, the busiest first. */
function coresText({ cores }: Measure): string {
  const busy = Object.entries(cores).filter(([, share]) => share >= 0.01);
  return busy
    .sort(([, a], [, b]) => b - a)
    .map(([role, share]) => `${role} ${share.toFixed(2)}`)
    .join(', ');
}

const devicesOf = 20;

async function firstTenant(api: Api): Promise<Tenant> {
  const token = await api.adminToken();
  return { token, devices: await newDevices(api, 'victim', token) };
}

async function secondTenant(api: Api): Promise<Tenant> {
  const { token: caller } = await api.login('sysadmin@millrace.local', api.address.adminPassword);
  const { token } = (await makeTenant(api, caller, 'attacker')).admin;
  return { token, devices: await newDevices(api, 'attacker', token) };
}

async function newDevices(api: Api, name: string, token: string): Promise<Device[]> {
  const devices = Array.from({ length: devicesOf }, (_, n) => ({
    name: `${name}-${n}`,
    accessToken: `${name}${String(n).padStart(12, '0')}`,
  }));
  return await api.createDevices(devices, token);
}

/** Fills the history of one device of each tenant: the attacker's gets `points`, the victim's a tenth of them. */
async function fill(api: Api, victim: Tenant, attacker: Tenant, points: number): Promise<void> {
  const perMessage = 2_000;
  const write = async ({ devices }: Tenant, count: number) => {
    for (let at = 0; at < count; at += perMessage) {
      const records = Array.from({ length: Math.min(perMessage, count - at) }, (_, n) => {
        return { ts: monday + (at + n) * 500, values: { flow: (at + n) / 7 } };
      });
      const status = await api.postTelemetry(devices[0]!.token, JSON.stringify(records));
      if (status !== 200) throw new Error(`telemetry: ${status}`);
    }
  };
  await Promise.all([write(attacker, points), write(victim, points / 10)]);
}

async function contestsOf(engine: Engine, victim: Tenant, attacker: Tenant, points: number): Promise<Contest[]> {
  const { api, port, analyticsPort } = engine;
  const ofVictim = (n: number) => victim.devices[n % devicesOf]!;
  const bearer = (token: string) => ({ 'x-authorization': `Bearer ${token}` });
  const json = { 'content-type': 'application/json' };
  const post = (path: string, body: string, headers = {}) =>
    requestBytes({ path, headers: { ...json, ...headers }, body });
  const get = (path: string, headers = {}) => requestBytes({ method: 'GET', path, headers });
  const ofEach = (request: (device: Device, n: number) => Buffer) => attacker.devices.map(request);
  const device = (token: string, operation: string) => `/api/v1/${token}/${operation}`;
  const records = (count: number) =>
    JSON.stringify(Array.from({ length: count }, (_, n) => ({ ts: Date.now() + n, values: { a: n, b: `text ${n}` } })));
  const [medium, large, larger] = [records(1_500), records(5_000), records(25_000)];
  const attributes = (count: number, prefix: string) =>
    JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, n) => [`${prefix}${n}`, n])));
  const series = (id: string, count: number) =>
    `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?keys=flow&startTs=0&endTs=${monday + dayMs}&limit=${count}`;
  const deletePath = (id: string, keys: string) =>
    `/api/plugins/telemetry/DEVICE/${id}/timeseries/delete?keys=${keys}&startTs=0&endTs=${monday}&deleteLatest=false`;
  const manyKeys = Array.from({ length: 3_000 }, (_, n) => n.toString(36)).join(',');
  const command = JSON.stringify({ method: 'open', params: {}, timeout: 5_000, persistent: false });
  const short = JSON.stringify({ method: 'open', params: {}, timeout: 50, persistent: false });
  const plain = {
    port,
    rate: 50,
    connections: 4,
    expected: 200,
    request: (n: number) => post(device(ofVictim(n).token, 'telemetry'), '{"a":1}'),
  };
  const rest = { mode: 'answers', connections: 64, port } as const;
  const [victimView, attackerView] = await Promise.all([
    saveView(analyticsPort, victim.token, 'FULL_HOUR', 'SUM'),
    saveView(analyticsPort, attacker.token, 'FULL_MINUTE', 'UNIQ'),
  ]);
  const build = (view: string, token: string) =>
    post('/apiAnalytics/publicApi/buildReport', JSON.stringify({ viewConfigId: view }), { jwt: token });
  const [victimFile, attackerFile] = await Promise.all([
    upload(api, victim.token, 256 * 1024),
    upload(api, attacker.token, 16 * 1024 * 1024),
  ]);

  return [
    {
      resource: 'telemetry that gathers for the disk',
      victim: plain,
      attack: { ...rest, requests: ofEach(({ token }) => post(device(token, 'telemetry'), records(50))) },
    },
    {
      resource: 'large bodies for the decoding thread',
      victim: {
        port,
        rate: 4,
        connections: 4,
        expected: 200,
        request: (n) => post(device(ofVictim(n).token, 'telemetry'), large),
      },
      attack: { ...rest, requests: ofEach(({ token }) => post(device(token, 'telemetry'), larger)) },
    },
    {
      resource: 'request bodies in memory',
      victim: {
        port,
        rate: 10,
        connections: 4,
        expected: 200,
        request: (n) => post(device(ofVictim(n).token, 'telemetry'), medium),
      },
      attack: {
        ...rest,
        mode: 'held',
        requests: ofEach(({ token }) =>
          requestBytes({
            path: device(token, 'telemetry'),
            headers: { 'content-length': '50000000' },
            body: 'x'.repeat(4_000_000),
          }),
        ),
      },
    },
    {
      resource: 'held polls',
      victim: {
        port,
        rate: 20,
        connections: 8,
        expected: 408,
        request: (n) => get(device(ofVictim(n).token, 'rpc?timeout=50')),
      },
      attack: { ...rest, connections: 600, requests: ofEach(({ token }) => get(device(token, 'rpc?timeout=60000'))) },
    },
    {
      resource: 'attributes that wait for their commit',
      victim: {
        port,
        rate: 20,
        connections: 16,
        expected: 200,
        request: (n) => post(device(ofVictim(n).token, 'attributes'), `{"a":${n}}`),
      },
      attack: {
        ...rest,
        requests: ofEach(({ token }, n) => post(device(token, 'attributes'), attributes(500, `k${n}-`))),
      },
    },
    {
      resource: 'commands that wait',
      victim: {
        port,
        rate: 40,
        connections: 8,
        expected: 504,
        request: (n) => post(`/api/rpc/oneway/${ofVictim(n).id}`, short, bearer(victim.token)),
      },
      attack: {
        ...rest,
        connections: 400,
        requests: ofEach(({ id }) => post(`/api/rpc/oneway/${id}`, command, bearer(attacker.token))),
      },
    },
    {
      resource: 'long answers, and answers in pieces',
      victim: {
        port,
        rate: 10,
        connections: 4,
        expected: 200,
        request: () => get(series(victim.devices[0]!.id, points / 10), bearer(victim.token)),
      },
      attack: {
        ...rest,
        mode: 'unread',
        connections: 300,
        requests: [get(series(attacker.devices[0]!.id, points), bearer(attacker.token))],
      },
    },
    {
      resource: 'reads of telemetry',
      victim: {
        port,
        rate: 10,
        connections: 4,
        expected: 200,
        request: (n) => get(series(ofVictim(n).id, 10), bearer(victim.token)),
      },
      attack: { ...rest, requests: [get(series(attacker.devices[0]!.id, points / 10), bearer(attacker.token))] },
    },
    {
      resource: 'reports',
      victim: {
        port: analyticsPort,
        rate: 5,
        connections: 4,
        expected: 200,
        request: () => build(victimView, victim.token),
      },
      attack: { ...rest, port: analyticsPort, connections: 40, requests: [build(attackerView, attacker.token)] },
    },
    {
      resource: 'deletes of series',
      victim: {
        port,
        rate: 5,
        connections: 4,
        expected: 200,
        request: (n) =>
          requestBytes({
            method: 'DELETE',
            path: deletePath(ofVictim(n).id, `gone${n}`),
            headers: bearer(victim.token),
          }),
      },
      attack: {
        ...rest,
        requests: ofEach(({ id }, n) =>
          requestBytes({ method: 'DELETE', path: deletePath(id, `gone${n}`), headers: bearer(attacker.token) }),
        ),
      },
    },
    {
      resource: 'pieces of packages',
      victim: {
        port,
        rate: 20,
        connections: 4,
        expected: 200,
        request: () => get(`/api/otaPackage/${victimFile}/download`, bearer(victim.token)),
      },
      attack: { ...rest, requests: [get(`/api/otaPackage/${attackerFile}/download`, bearer(attacker.token))] },
    },
    {
      resource: 'statements of PostgreSQL',
      victim: {
        port,
        rate: 20,
        connections: 4,
        expected: 200,
        request: (n) => get(`/api/device/${ofVictim(n).id}`, bearer(victim.token)),
      },
      attack: { ...rest, requests: [get('/api/tenant/deviceInfos?pageSize=1000&page=0', bearer(attacker.token))] },
    },
    {
      resource: 'sockets of HTTP',
      victim: plain,
      attack: { ...rest, mode: 'held', connections: 1_500, requests: [Buffer.from('GET / HTTP/1.1\r\nHost: ')] },
    },
    {
      resource: 'look-ups of unknown tokens',
      victim: plain,
      attack: {
        ...rest,
        requests: Array.from({ length: 10_000 }, () =>
          post(device(randomBytes(10).toString('hex'), 'telemetry'), '{"a":1}'),
        ),
      },
    },
    {
      resource: 'deletes of many series at once',
      victim: plain,
      attack: {
        ...rest,
        connections: 500,
        requests: ofEach(({ id }) =>
          requestBytes({ method: 'DELETE', path: deletePath(id, manyKeys), headers: bearer(attacker.token) }),
        ),
      },
    },
  ];
}

async function saveView(port: number, jwt: string, dateGrouping: string, aggregation: string): Promise<string> {
  const fields = [
    { label: 'Date', source: 'DATE', dateGrouping, role: 'ROW' },
    { label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation },
  ];
  const timeRange = { type: 'FIXED', startTs: monday, endTs: monday + dayMs };
  const response = await fetch(`http://127.0.0.1:${port}/apiAnalytics/view`, {
    method: 'POST',
    headers: { jwt, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'view', fields, timeRange }),
  });
  if (response.status !== 200) throw new Error(`view: ${response.status} ${await response.text()}`);
  return ((await response.json()) as { id: string }).id;
}

async function upload(api: Api, token: string, bytes: number): Promise<string> {
  const described = { type: 'FIRMWARE', title: 'pump', version: '1' };
  const { id } = await call(api, 'POST', '/api/otaPackage', described, token);
  const form = new FormData();
  form.set('file', new Blob([randomBytes(bytes)]), 'pump.bin');
  const response = await fetch(`${api.http}/api/otaPackage/${id.id}?checksumAlgorithm=SHA256`, {
    method: 'POST',
    headers: { 'x-authorization': `Bearer ${token}` },
    body: form,
  });
  if (response.status !== 200) throw new Error(`upload: ${response.status} ${await response.text()}`);
  return id.id;
}
