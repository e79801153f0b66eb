/** A device over HTTP and the user who writes its attributes, in the words of the tests. */
import { expect } from 'vitest';
import type { Device } from './api.ts';
import { newDevice, sharedEngine } from './shared-engine.ts';

type ScopeName = 'CLIENT_SCOPE' | 'SHARED_SCOPE' | 'SERVER_SCOPE';

interface DeviceAnswer {
  status: number;
  body: string;
  contentType: string | null;
}

export async function readAnswer(response: Response): Promise<DeviceAnswer> {
  return { status: response.status, body: await response.text(), contentType: response.headers.get('content-type') };
}

export class DeviceUser {
  readonly device: Device;

  constructor(device: Device) {
    this.device = device;
  }

  static async create(): Promise<DeviceUser> {
    return new DeviceUser(await newDevice());
  }

  /** Makes a call of the device itself; `path` follows its token. */
  async ask(method: string, path: string, body?: string): Promise<DeviceAnswer> {
    const response = await fetch(`${sharedEngine().http}/api/v1/${this.device.token}/${path}`, {
      method,
      ...(body !== undefined && { body }),
      signal: AbortSignal.timeout(20_000),
    });
    return await readAnswer(response);
  }

  async post(body: string): Promise<void> {
    const answer = await this.ask('POST', 'attributes', body);
    expect([answer.status, answer.body]).toEqual([200, '']);
  }

  /** Returns the body of GET attributes. */
  async read(query = ''): Promise<string> {
    const answer = await this.ask('GET', `attributes${query}`);
    expect([answer.status, answer.contentType]).toEqual([200, 'application/json']);
    return answer.body;
  }

  poll(timeoutMs: number): Promise<DeviceAnswer> {
    return this.ask('GET', `attributes/updates?timeout=${timeoutMs}`);
  }

  async set(scope: ScopeName, body: string): Promise<void> {
    const response = await sharedEngine().send('POST', `/api/plugins/telemetry/${this.device.id}/${scope}`, body);
    expect([response.status, await response.text()]).toEqual([200, '']);
  }

  async delete(scope: ScopeName, keys: string): Promise<void> {
    const path = `/api/plugins/telemetry/DEVICE/${this.device.id}/${scope}?keys=${keys}`;
    const response = await sharedEngine().send('DELETE', path);
    expect([response.status, await response.text()]).toEqual([200, '']);
  }

  /** `{"key":value,…}` of a scope by REST, values as they were written. */
  async values(scope: ScopeName, query = ''): Promise<string> {
    const path = `/api/plugins/telemetry/DEVICE/${this.device.id}/values/attributes/${scope}${query}`;
    const response = await sharedEngine().send('GET', path);
    const text = await response.text();
    expect(response.status, text).toBe(200);
    return text.replaceAll(/"lastUpdateTs":\d+,/g, '');
  }
}
