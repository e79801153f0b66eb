/**
 * The contests of `npm run bench -- hostile`: for each resource that callers share, the calls of a victim and those of
 * an attacker who uses as much of the resource as the engine lets them.
 */

import { randomBytes } from 'node:crypto';
import { dayMs } from '../../src/base/durations.ts';
import type { Api, Device } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { requestBytes } from '../../test/harness/raw.ts';
import { call } from '../../test/harness/tenants.ts';
import type { AttackOrder } from '../load/attack-process.ts';

export const devicesOf = 20;
export const monday = Date.UTC(2025, 5, 2);

export interface Tenant {
  token: string;
  devices: Device[];
}

export interface Contest {
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

/** Both tenants, and what most of their calls have in common. */
interface Parties {
  port: number;
  victim: Tenant;
  attacker: Tenant;
  /** Points of the attacker's device with a history; the victim's has a tenth. */
  points: number;
  /** The device of the n-th call of the victim. */
  ofVictim(n: number): Device;
  /** One request for each device of the attacker. */
  ofEach(request: (device: Device, n: number) => Buffer): Buffer[];
  /** A victim who sends small messages. */
  plain: Contest['victim'];
  attack: { mode: 'answers'; connections: number; port: number };
}

/** The number of a contest, as `hostile.only` has it, is its place in the list. */
export async function contestsOf(
  { api, port, analyticsPort }: Engine,
  victim: Tenant,
  attacker: Tenant,
  points: number,
): Promise<Contest[]> {
  const ofVictim = (n: number) => victim.devices[n % devicesOf]!;
  const parties: Parties = {
    ...{ port, victim, attacker, points, ofVictim },
    ofEach: (request) => attacker.devices.map(request),
    plain: {
      port,
      rate: 50,
      connections: 4,
      expected: 200,
      request: (n) => post(device(ofVictim(n).token, 'telemetry'), '{"a":1}'),
    },
    attack: { mode: 'answers', connections: 64, port },
  };
  const [victimView, attackerView] = await Promise.all([
    saveView(analyticsPort, victim.token, 'FULL_HOUR', 'SUM'),
    saveView(analyticsPort, attacker.token, 'FULL_MINUTE', 'UNIQ'),
  ]);
  const [victimFile, attackerFile] = await Promise.all([
    upload(api, victim.token, 256 * 1024),
    upload(api, attacker.token, 16 * 1024 * 1024),
  ]);
  return [
    ...ofTelemetry(parties),
    ...ofDevices(parties),
    ...ofReads(parties),
    ...ofReports(parties, analyticsPort, victimView, attackerView),
    ...ofStores(parties, victimFile, attackerFile),
    ...ofCallers(parties),
  ];
}

function ofTelemetry({ port, ofVictim, ofEach, plain, attack }: Parties): Contest[] {
  const [medium, large, larger] = [records(1_500), records(5_000), records(25_000)];
  return [
    {
      resource: 'telemetry that gathers for the disk',
      victim: plain,
      attack: { ...attack, requests: ofEach(({ token }) => post(device(token, 'telemetry'), records(50))) },
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
      attack: { ...attack, requests: ofEach(({ token }) => post(device(token, 'telemetry'), larger)) },
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
        ...attack,
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
  ];
}

function ofDevices({ port, victim, attacker, ofVictim, ofEach, attack }: Parties): Contest[] {
  const attributes = (count: number, prefix: string) =>
    JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, n) => [`${prefix}${n}`, n])));
  const command = JSON.stringify({ method: 'open', params: {}, timeout: 5_000, persistent: false });
  const short = JSON.stringify({ method: 'open', params: {}, timeout: 50, persistent: false });
  return [
    {
      resource: 'held polls',
      victim: {
        port,
        rate: 20,
        connections: 8,
        expected: 408,
        request: (n) => get(device(ofVictim(n).token, 'rpc?timeout=50')),
      },
      attack: { ...attack, connections: 600, requests: ofEach(({ token }) => get(device(token, 'rpc?timeout=60000'))) },
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
        ...attack,
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
        ...attack,
        connections: 400,
        requests: ofEach(({ id }) => post(`/api/rpc/oneway/${id}`, command, bearer(attacker.token))),
      },
    },
  ];
}

function ofReads({ port, victim, attacker, points, ofVictim, attack }: Parties): Contest[] {
  const series = (id: string, count: number) =>
    `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?keys=flow&startTs=0&endTs=${monday + dayMs}&limit=${count}`;
  return [
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
        ...attack,
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
      attack: { ...attack, requests: [get(series(attacker.devices[0]!.id, points / 10), bearer(attacker.token))] },
    },
  ];
}

function ofReports(
  { victim, attacker, attack }: Parties,
  analyticsPort: number,
  victimView: string,
  attackerView: string,
): Contest[] {
  const build = (view: string, token: string) =>
    post('/apiAnalytics/publicApi/buildReport', JSON.stringify({ viewConfigId: view }), { jwt: token });
  return [
    {
      resource: 'reports',
      victim: {
        port: analyticsPort,
        rate: 5,
        connections: 4,
        expected: 200,
        request: () => build(victimView, victim.token),
      },
      attack: { ...attack, port: analyticsPort, connections: 40, requests: [build(attackerView, attacker.token)] },
    },
  ];
}

function ofStores(
  { port, victim, attacker, ofVictim, ofEach, attack }: Parties,
  victimFile: string,
  attackerFile: string,
): Contest[] {
  return [
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
        ...attack,
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
      attack: { ...attack, requests: [get(`/api/otaPackage/${attackerFile}/download`, bearer(attacker.token))] },
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
      attack: { ...attack, requests: [get('/api/tenant/deviceInfos?pageSize=1000&page=0', bearer(attacker.token))] },
    },
  ];
}

function ofCallers({ attacker, ofEach, plain, attack }: Parties): Contest[] {
  const manyKeys = Array.from({ length: 3_000 }, (_, n) => n.toString(36)).join(',');
  return [
    {
      resource: 'sockets of HTTP',
      victim: plain,
      attack: { ...attack, mode: 'held', connections: 1_500, requests: [Buffer.from('GET / HTTP/1.1\r\nHost: ')] },
    },
    {
      resource: 'look-ups of unknown tokens',
      victim: plain,
      attack: {
        ...attack,
        requests: Array.from({ length: 10_000 }, () =>
          post(device(randomBytes(10).toString('hex'), 'telemetry'), '{"a":1}'),
        ),
      },
    },
    {
      resource: 'deletes of many series at once',
      victim: plain,
      attack: {
        ...attack,
        connections: 500,
        requests: ofEach(({ id }) =>
          requestBytes({ method: 'DELETE', path: deletePath(id, manyKeys), headers: bearer(attacker.token) }),
        ),
      },
    },
  ];
}

function post(path: string, body: string, headers = {}): Buffer {
  return requestBytes({ path, headers: { 'content-type': 'application/json', ...headers }, body });
}

function get(path: string, headers = {}): Buffer {
  return requestBytes({ method: 'GET', path, headers });
}

function bearer(token: string) {
  return { 'x-authorization': `Bearer ${token}` };
}

function device(token: string, operation: string): string {
  return `/api/v1/${token}/${operation}`;
}

function records(count: number): string {
  return JSON.stringify(
    Array.from({ length: count }, (_, n) => ({ ts: Date.now() + n, values: { a: n, b: `text ${n}` } })),
  );
}

function deletePath(id: string, keys: string): string {
  return `/api/plugins/telemetry/DEVICE/${id}/timeseries/delete?keys=${keys}&startTs=0&endTs=${monday}&deleteLatest=false`;
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
