/** Packages as a user makes them by REST, and the devices that get them. */
import { randomBytes, randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import { ok } from './people.ts';
import { sharedEngine } from './shared-engine.ts';

export interface PackageJson {
  id: { entityType: string; id: string };
  title: string;
  version: string;
  [member: string]: unknown;
}

export interface DeviceJson {
  id: { id: string };
  deviceProfileId: { entityType: string; id: string };
  [member: string]: unknown;
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  return await ok(method, path, body);
}

export function describePackage(members: object = {}): Promise<PackageJson> {
  const title = `fw-${randomUUID()}`;
  return call('POST', '/api/otaPackage', { type: 'FIRMWARE', title, version: '1', ...members });
}

export interface Upload {
  bytes?: Buffer;
  algorithm?: string;
  checksum?: string;
  name?: string;
  type?: string;
  part?: string;
}

export async function upload(id: string, file: Upload = {}): Promise<Response> {
  const { bytes = randomBytes(10), algorithm = 'SHA256', checksum, name = 'fw.bin', part = 'file' } = file;
  const api = sharedEngine();
  const form = new FormData();
  form.set(part, new Blob([new Uint8Array(bytes)], { type: file.type ?? 'application/octet-stream' }), name);
  const query = `?checksumAlgorithm=${algorithm}${checksum === undefined ? '' : `&checksum=${checksum}`}`;
  return fetch(`${api.http}/api/otaPackage/${id}${query}`, {
    method: 'POST',
    headers: { 'x-authorization': `Bearer ${await api.adminToken()}` },
    body: form,
  });
}

export async function newPackage(members: object = {}, file: Upload = {}): Promise<PackageJson> {
  const described = await describePackage(members);
  const response = await upload(described.id.id, file);
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text) as PackageJson;
}

export function readDevice(id: string): Promise<DeviceJson> {
  return call('GET', `/api/device/${id}`);
}

/** Saves the device with its present members but these. */
export async function saveDevice(id: string, members: object): Promise<DeviceJson> {
  return call('POST', '/api/device', { ...(await readDevice(id)), ...members });
}

/** Returns the shared attributes of a device, key → value. */
export async function sharedAttributes(id: string): Promise<Record<string, unknown>> {
  const path = `/api/plugins/telemetry/DEVICE/${id}/values/attributes/SHARED_SCOPE`;
  const rows = await call<{ key: string; value: unknown }[]>('GET', path);
  return Object.fromEntries(rows.map(({ key, value }) => [key, value]));
}

/** Returns every value that a series has had, oldest first. */
export async function seriesOf(id: string, keys: string[]): Promise<Record<string, unknown[]>> {
  const series = await sharedEngine().readSeries(id, keys, { startTs: 0, endTs: Date.now() + 60_000 });
  return Object.fromEntries(Object.entries(series).map(([key, points]) => [key, points.map(({ value }) => value)]));
}

export function firmwarePath(token: string, { title, version }: { title: string; version: string }, more = ''): string {
  return `/api/v1/${token}/firmware?${new URLSearchParams({ title, version })}${more}`;
}
