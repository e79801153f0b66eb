/**
 * A user of a running engine: signs in, makes devices, reads series, all over the public REST API. It knows an address
 * and a password, not the process; `engine.ts` adds the process.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

export interface ApiAddress {
  host: string;
  port: number;
  /** The port for operators, with metrics. */
  monitorPort: number;
  adminEmail: string;
  adminPassword: string;
}

export interface Device {
  id: string;
  token: string;
}

interface Point {
  ts: number;
  value: unknown;
}

export interface RangeOfSeries {
  startTs: number;
  endTs: number;
  limit?: number;
}

export class Api {
  readonly address: ApiAddress;
  readonly http: string;
  #adminToken: Promise<string> | undefined;

  constructor(address: ApiAddress) {
    this.address = address;
    this.http = `http://${address.host}:${address.port}`;
  }

  /** Returns the metrics with names that have no prefix, as in earlier builds. */
  async metrics(): Promise<string> {
    return (await this.metricsPage()).replaceAll(/^((?:# \w+ )?)millrace_/gm, '$1');
  }

  /** Returns the metrics as they are; a build without a port for operators has them on the public port. */
  async metricsPage(): Promise<string> {
    const { host, monitorPort } = this.address;
    const ask = (base: string) => fetch(`${base}/metrics`, { signal: AbortSignal.timeout(5_000) });
    const response = await ask(`http://${host}:${monitorPort}`).catch(() => ask(this.http));
    if (response.status !== 200) throw new Error(`metrics: ${response.status}`);
    return await response.text();
  }

  /** Returns the JWT of the first administrator, requested once. */
  adminToken(): Promise<string> {
    this.#adminToken ??= this.login().then(
      ({ token }) => token,
      (error: unknown) => {
        this.#adminToken = undefined;
        throw error;
      },
    );
    return this.#adminToken;
  }

  async login(
    username = this.address.adminEmail,
    password = this.address.adminPassword,
  ): Promise<{ token: string; refreshToken: string }> {
    const response = await this.send('POST', '/api/auth/login', { username, password }, '');
    if (response.status !== 200) throw new Error(`login answered ${response.status}: ${await response.text()}`);
    return (await response.json()) as { token: string; refreshToken: string };
  }

  /** Makes one REST call as the administrator; `token` '' sends none. */
  async send(method: string, path: string, body?: unknown, token?: string): Promise<Response> {
    const bearer = token ?? (await this.adminToken());
    return fetch(`${this.http}${path}`, {
      method,
      headers: {
        ...(bearer && { 'x-authorization': `Bearer ${bearer}` }),
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      signal: AbortSignal.timeout(30_000),
    });
  }

  /** Returns a new API key of the administrator, as programs use. */
  async createKey(): Promise<string> {
    const user = (await (await this.send('GET', '/api/auth/user')).json()) as { id: unknown };
    const key = { userId: user.id, description: 'program', enabled: true, expirationTime: 0 };
    const response = await this.send('POST', '/api/apiKey', key);
    if (response.status !== 200) throw new Error(`create key: ${response.status} ${await response.text()}`);
    return ((await response.json()) as { value: string }).value;
  }

  /** A taken name gets a suffix, so that a retried test has separate devices. */
  async createDevice(name: string, accessToken = '', members: object = {}): Promise<Device> {
    const query = new URLSearchParams({ nameConflictPolicy: 'UNIQUIFY', ...(accessToken && { accessToken }) });
    const created = await this.send('POST', `/api/device?${query}`, { name, ...members });
    if (created.status !== 200) throw new Error(`create device: ${created.status} ${await created.text()}`);
    const { id } = (await created.json()) as { id: { id: string } };
    const answer = await this.send('GET', `/api/device/${id.id}/credentials`);
    const { credentialsId } = (await answer.json()) as { credentialsId: string };
    return { id: id.id, token: credentialsId };
  }

  /** Many devices in one call. Throws unless all of them are made; `token` is that of another caller. */
  async createDevices(devices: object[], token?: string): Promise<Device[]> {
    return await devicesMade(await this.send('POST', '/api/devices/bulk', { devices }, token));
  }

  /** A device that no other test knows. */
  newDevice(): Promise<Device> {
    return this.createDevice(`device-${randomUUID()}`);
  }

  createGateway(name: string): Promise<Device> {
    return this.createDevice(name, '', { additionalInfo: { gateway: true } });
  }

  /** Returns the id of a command that waits for its device. */
  async sendPersistent(deviceId: string, body: object, kind: 'oneway' | 'twoway' = 'twoway'): Promise<string> {
    const answer = await this.send('POST', `/api/rpc/${kind}/${deviceId}`, { persistent: true, ...body });
    if (answer.status !== 200) throw new Error(`persistent command: ${answer.status} ${await answer.text()}`);
    return ((await answer.json()) as { rpcId: string }).rpcId;
  }

  async persistentState(rpcId: string): Promise<{ status: string; response: unknown }> {
    const answer = await this.send('GET', `/api/rpc/persistent/${rpcId}`);
    return (await answer.json()) as { status: string; response: unknown };
  }

  async postTelemetry(token: string, body: string): Promise<number> {
    const response = await fetch(`${this.http}/api/v1/${token}/telemetry`, {
      method: 'POST',
      body,
      signal: AbortSignal.timeout(30_000),
    });
    await response.arrayBuffer();
    return response.status;
  }

  /**
   * Repeats eight requests at once until all are answered with `status`. A busy machine may take longer than the second
   * that is promised.
   */
  async telemetryBecomes(token: string, status: number): Promise<void> {
    await eventually(async () => {
      const statuses = await Promise.all(Array.from({ length: 8 }, () => this.postTelemetry(token, '{"a":1}')));
      return statuses.every((answered) => answered === status);
    }, 3_000);
  }

  /** Returns the history with strict types, oldest first, as the raw answer: 42.0 and 64-bit longs keep every digit. */
  async readSeriesText(deviceId: string, keys: string[], range: RangeOfSeries): Promise<string> {
    const query = new URLSearchParams({
      keys: keys.join(','),
      startTs: String(range.startTs),
      endTs: String(range.endTs),
      limit: String(range.limit ?? 10_000),
      orderBy: 'ASC',
      useStrictDataTypes: 'true',
    });
    return this.#readText(`/api/plugins/telemetry/DEVICE/${deviceId}/values/timeseries?${query}`);
  }

  async readSeries(deviceId: string, keys: string[], range: RangeOfSeries): Promise<Record<string, Point[]>> {
    return JSON.parse(await this.readSeriesText(deviceId, keys, range)) as Record<string, Point[]>;
  }

  /** Returns latest values with strict types, as the raw answer; without keys those of every key of the device. */
  async readLatestText(deviceId: string, keys: string[] = []): Promise<string> {
    const query = new URLSearchParams({ useStrictDataTypes: 'true', ...(keys.length && { keys: keys.join(',') }) });
    return this.#readText(`/api/plugins/telemetry/DEVICE/${deviceId}/values/timeseries?${query}`);
  }

  async readLatest(deviceId: string, keys: string[] = []): Promise<Record<string, Point[]>> {
    return JSON.parse(await this.readLatestText(deviceId, keys)) as Record<string, Point[]>;
  }

  async #readText(path: string): Promise<string> {
    const response = await this.send('GET', path);
    const text = await response.text();
    if (response.status !== 200) throw new Error(`GET ${path}: ${response.status} ${text}`);
    return text;
  }
}

/** Reads the answer of the bulk creation, in the order of the request. */
export async function devicesMade(answer: Response): Promise<Device[]> {
  if (answer.status !== 200) throw new Error(`create devices: ${answer.status} ${await answer.text()}`);
  const { results } = (await answer.json()) as {
    results: { id: { id: string } | null; accessToken: string; error: string }[];
  };
  return results.map(({ id, accessToken, error }) => {
    if (id === null) throw new Error(`create device: ${error}`);
    return { id: id.id, token: accessToken };
  });
}

const pauseMsMax = 200;

/**
 * Repeats `ask` until it returns something true; fails with the last error or answer. Pauses grow, because most calls
 * cost a query: a pause is a tenth of the time waited so far, unless `pauseMs` is given.
 */
export async function eventually<T>(
  ask: () => Promise<T> | T,
  waitMsMax = 10_000,
  pauseMs?: number,
): Promise<NonNullable<T>> {
  const started = performance.now();
  const deadline = started + waitMsMax;
  let last: unknown = 'nothing';
  // The last question is asked after the deadline, so that a stall of the machine hides no answer.
  for (let isLast = false; !isLast; ) {
    isLast = performance.now() >= deadline;
    try {
      const answer = await ask();
      if (answer) return answer;
      last = answer;
    } catch (error) {
      last = error;
    }
    if (!isLast) await sleep(pauseMs ?? Math.min(pauseMsMax, Math.max(20, (performance.now() - started) / 10)));
  }
  throw new Error(`not within ${waitMsMax} ms; last answer: ${last instanceof Error ? last.message : String(last)}`);
}
