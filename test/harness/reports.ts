/** A user of the analytics component: views, reports, and devices with sites and points to report on. */
import { randomUUID } from 'node:crypto';
import { expect, inject } from 'vitest';
import { type Api, eventually } from './api.ts';
import { ok } from './people.ts';
import { sharedEngine } from './shared-engine.ts';

// biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
type Json = any;

export const dayMs = 86_400_000;
/** Far from now, so that no result depends on the day of the test. 2025-06-02 is a Monday. */
export const monday = Date.UTC(2025, 5, 2);

interface Report {
  columnLabels: string[];
  dataTable: Record<string, string | number>[];
}

export function analyticsUrl(): string {
  return `http://127.0.0.1:${inject('engine').analyticsPort}`;
}

interface Ask {
  token?: string | undefined;
  headers?: Record<string, string>;
  url?: string;
}

/** Calls as the administrator by default; a `token` of '' sends none. */
export async function ask(
  method: string,
  path: string,
  body?: unknown,
  { token, headers, url }: Ask = {},
): Promise<Response> {
  const jwt = token ?? (await sharedEngine().adminToken());
  return await fetch(`${url ?? analyticsUrl()}${path}`, {
    method,
    headers: { ...(jwt && { jwt }), ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
    ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    signal: AbortSignal.timeout(60_000),
  });
}

export async function good(method: string, path: string, body?: unknown, of: Ask = {}): Promise<Json> {
  const response = await ask(method, path, body, of);
  const text = await response.text();
  expect(response.status, `${method} ${path}: ${text}`).toBe(200);
  return text === '' ? undefined : JSON.parse(text);
}

export const buildReport = '/apiAnalytics/publicApi/buildReport';

export async function report(viewConfigId: string, request: object = {}, of: Ask = {}): Promise<Report> {
  return await good('POST', buildReport, { viewConfigId, ...request }, of);
}

export async function preview(view: object, of: Ask = {}): Promise<Report> {
  return await good('POST', '/apiAnalytics/view/preview', view, of);
}

export async function saveView(view: object, of: Ask = {}): Promise<string> {
  return (await good('POST', '/apiAnalytics/view', { name: `view-${randomUUID()}`, ...view }, of)).id;
}

export const site = { label: 'Site', source: 'ATTRIBUTE', attributeScope: 'SERVER_SCOPE', key: 'site', role: 'ROW' };
export const date = (dateGrouping: string) => ({ label: 'Date', source: 'DATE', role: 'ROW', dateGrouping });
export const value = (key: string, aggregation: string, label = key) => ({
  ...{ label, source: 'TELEMETRY', key, role: 'VALUE', aggregation },
});
export const siteFilter = { name: 'site', source: 'ATTRIBUTE', attributeScope: 'SERVER_SCOPE', key: 'site' };

/** Returns a view over the days around `monday`. */
export function viewOf(profile: string, fields: object[], more: object = {}): object {
  return {
    fields,
    scope: { deviceProfiles: [profile] },
    timeRange: { type: 'FIXED', startTs: monday, endTs: monday + 7 * dayMs },
    timeZone: 'Europe/Kyiv',
    ...more,
  };
}

export interface Plant {
  profile: string;
  devices: { id: string; name: string; token: string }[];
}

/** Makes devices of a new profile, one for each site; reports include them when this resolves. */
export async function newPlant(sites: string[], api: Api = sharedEngine(), url = analyticsUrl()): Promise<Plant> {
  const profile = `profile-${randomUUID()}`;
  const devices: Plant['devices'] = [];
  for (const at of sites) {
    const name = `device-${randomUUID()}`;
    const { id } = await ok('POST', '/api/device', { name, type: profile }, undefined, api);
    const { credentialsId } = await ok('GET', `/api/device/${id.id}/credentials`, undefined, undefined, api);
    await ok('POST', `/api/plugins/telemetry/DEVICE/${id.id}/SERVER_SCOPE`, { site: at }, undefined, api);
    devices.push({ id: id.id, name, token: credentialsId });
  }
  const token = await api.adminToken();
  // Previews show attributes that a saved view names.
  await saveView(viewOf(profile, [site]), { token, url });
  const names = { label: 'n', source: 'ENTITY_FIELD', key: 'name', role: 'VALUE', aggregation: 'COUNT' };
  await eventually(async () => {
    const { dataTable } = await preview(viewOf(profile, [site, names]), { token, url });
    const count = dataTable.reduce((sum, row) => sum + (row['Site'] === '-' ? 0 : Number(row['n'])), 0);
    return count === sites.length;
  });
  return { profile, devices };
}

/** Posts points of one key and waits until reports include them. */
export async function send(
  plant: Plant,
  device: number,
  key: string,
  points: [ts: number, value: unknown][],
): Promise<void> {
  const api = sharedEngine();
  const { id, token } = plant.devices[device]!;
  const body = points.map(([ts, value]) => ({ ts, values: { [key]: value } }));
  expect(await api.postTelemetry(token, JSON.stringify(body))).toBe(200);
  const range = { startTs: Math.min(...points.map(([ts]) => ts)), endTs: Math.max(...points.map(([ts]) => ts)) + 1 };
  await eventually(async () => (await api.readSeries(id, [key], range))[key]?.length === points.length);
}
