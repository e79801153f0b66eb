/**
 * A user of the REST interface that the target speaks: creates the devices of a run, counts what is stored, removes the
 * devices. It uses calls that ThingsBoard has, too, and Millrace's bulk creation where that exists. A server that
 * answers 429 is asked again after the time that it names.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Device, devicesMade } from '../../test/harness/api.ts';
import { causeOf } from '../error-sentence.ts';
import type { TlsOrder } from '../load/open-socket.ts';
import { UsageError } from '../settings.ts';
import { Caller } from './caller.ts';

const bulkSize = 1_000;
const callsAtOnce = 16;
const pageSize = 100;
const removeRoundsMax = 5;
const hurriedTimeoutMs = 5_000;
/** After so long without another answer, a 429 is the answer. */
const limitedMsMax = 60_000;
const retryAfterMs = 1_000;
const retryAfterMsMax = 30_000;
/** Of an answer in a message: a balancer may answer with a page. */
const textCharsMax = 200;

/** How far the removal of devices is: `left` are still listed. */
export interface Removal {
  removed: number;
  left: number;
}

export interface NewDevice {
  name: string;
  accessToken: string;
  isGateway: boolean;
}

/** How a run signs in: by an API key, or when that is '' by user and password. */
interface SignIn {
  /** The base URL of the REST interface. */
  rest: string;
  user: string;
  password: string;
  apiKey: string;
  tls: TlsOrder | undefined;
}

interface SendOptions {
  body?: object;
  /** Absent: the wait after a 429 goes on. */
  interrupted?: AbortSignal;
}

const deviceMaker = 'Give an administrator of a tenant, who can create devices';
/** Sentences for users who cannot create devices, by their authority. */
const wrongUsers: Record<string, string> = {
  SYS_ADMIN: `is a system administrator, who makes tenants and has no devices. ${deviceMaker}.`,
  CUSTOMER_USER: `is a user of a customer, who cannot create devices. ${deviceMaker}.`,
};

export class Platform {
  readonly #signIn: SignIn;
  readonly #caller: Caller;
  /** The value of X-Authorization; '' = not signed in. */
  #authorization = '';
  /** Answers of 429, and the time in which calls waited because of them. */
  readonly limited = { answers: 0, ms: 0 };
  /** Calls that were answered 429 are repeated at this moment. */
  #limitedUntil = 0;
  /** The first 429 since another answer; 0 = the last answer was another one. */
  #limitedSince = 0;

  private constructor(signIn: SignIn) {
    this.#signIn = signIn;
    this.#caller = new Caller(signIn.rest, signIn.tls);
  }

  static async signIn(signIn: SignIn): Promise<Platform> {
    const platform = new Platform(signIn);
    if (signIn.apiKey === '') await platform.#renew();
    else platform.#authorization = `ApiKey ${signIn.apiKey}`;
    await platform.#checkUser();
    return platform;
  }

  /** What the server says of itself, as in `Millrace 0.1.0`; '' = nothing. */
  async serverVersion(): Promise<string> {
    const answer = await this.#send('GET', '/api/system/info');
    if (answer.status !== 200) return '';
    const info = (await answer.json().catch(() => ({}))) as {
      name?: string;
      version?: string;
      millraceVersion?: string;
    };
    const { name = 'unnamed', version, millraceVersion } = info;
    if (version === undefined) return '';
    return millraceVersion === undefined
      ? `${name} ${version}`
      : `${name} ${millraceVersion} (API of ThingsBoard ${version})`;
  }

  /** The server may be gone: no call waits long for it any more. */
  hurry(): void {
    this.#caller.timeoutMs = hurriedTimeoutMs;
  }

  /** Ends the connections that are kept. */
  close(): void {
    this.#caller.close();
  }

  async create(devices: NewDevice[], interrupted: AbortSignal): Promise<Device[]> {
    const first = devices.slice(0, bulkSize);
    const answer = await this.#send('POST', '/api/devices/bulk', { body: bulkBody(first), interrupted });
    if (answer.status !== 200) {
      await answer.arrayBuffer();
      return await inTurns(devices, (device) => this.#createOne(device, interrupted), interrupted);
    }
    const made = await devicesMade(answer);
    for (let from = bulkSize; from < devices.length; from += bulkSize) {
      interrupted.throwIfAborted();
      made.push(
        ...(await devicesMade(
          await this.#send('POST', '/api/devices/bulk', {
            body: bulkBody(devices.slice(from, from + bulkSize)),
            interrupted,
          }),
        )),
      );
    }
    return made;
  }

  /** The ids of all devices whose names begin so. */
  async idsOf(prefix: string): Promise<string[]> {
    const ids: string[] = [];
    for (let page = 0; ; page += 1) {
      const path = `/api/tenant/devices?pageSize=${pageSize}&page=${page}&textSearch=${encodeURIComponent(prefix)}`;
      const found = (await this.#json('GET', path)) as {
        data: { id: { id: string }; name: string }[];
        hasNext: boolean;
      };
      ids.push(...found.data.filter(({ name }) => name.startsWith(prefix)).map(({ id }) => id.id));
      if (!found.hasNext) return ids;
    }
  }

  /**
   * Removes the devices whose names begin so; returns how many. The server may still handle the last messages of a
   * gateway, which create its devices again, so the devices are listed until none is left.
   */
  async removeAll(prefix: string, seen: (progress: Removal) => void = () => {}): Promise<number> {
    const removed = new Set<string>();
    for (let round = 0; round < removeRoundsMax; round += 1) {
      const ids = await this.idsOf(prefix);
      if (ids.length === 0) return removed.size;
      let left = ids.length;
      seen({ removed: removed.size, left });
      await inTurns(ids, async (id) => {
        const { status } = await this.#send('DELETE', `/api/device/${id}`);
        if (status !== 200 && status !== 404) throw new Error(`DELETE /api/device/${id} was answered ${status}`);
        removed.add(id);
        left -= 1;
        seen({ removed: removed.size, left });
      });
    }
    throw new Error('the server still lists devices that it has removed');
  }

  /** Counts the points of a key that the devices have in a range, both ends included. */
  async countPoints(
    ids: string[],
    key: string,
    fromTs: number,
    untilTs: number,
    interrupted: AbortSignal,
  ): Promise<number> {
    const interval = untilTs + 1 - fromTs;
    const query = `keys=${key}&startTs=${fromTs}&endTs=${untilTs + 1}&interval=${interval}&agg=COUNT&limit=1`;
    const countOf = async (id: string) => {
      const path = `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?${query}`;
      const series = (await this.#json('GET', path, { interrupted })) as Record<string, { value: string }[]>;
      return Number(series[key]?.[0]?.value ?? 0);
    };
    const counts = await inTurns(ids, countOf, interrupted);
    return counts.reduce((sum, count) => sum + count, 0);
  }

  async #createOne({ name, accessToken, isGateway }: NewDevice, interrupted: AbortSignal): Promise<Device> {
    const body = { name, type: 'default', additionalInfo: { gateway: isGateway } };
    const path = `/api/device?accessToken=${accessToken}`;
    const made = (await this.#json('POST', path, { body, interrupted })) as { id: { id: string } };
    return { id: made.id.id, token: accessToken };
  }

  async #json(method: string, path: string, options: SendOptions = {}): Promise<unknown> {
    const answer = await this.#send(method, path, options);
    const begin = `${method} ${path} was answered`;
    if (answer.status !== 200) throw new Error(`${begin} ${await beginOf(answer)}`);
    return await jsonOf(answer, (text) => new Error(`${begin} ${text}`));
  }

  /**
   * Renews a session that has ended, once for each call, and repeats a call that was answered 429. An interrupt ends
   * that wait: a call that was refused has changed nothing.
   */
  async #send(method: string, path: string, { body, interrupted }: SendOptions = {}): Promise<Response> {
    for (;;) {
      const answer = await this.#sendOnce(method, path, body);
      if (answer.status !== 429) {
        this.#limitedSince = 0;
        return answer;
      }
      this.limited.answers += 1;
      this.#limitedSince ||= performance.now();
      if (performance.now() - this.#limitedSince > limitedMsMax) return answer;
      await answer.arrayBuffer();
      this.#pause(answer);
      for (let ms = this.#pauseMs(); ms > 0; ms = this.#pauseMs()) await sleep(ms, undefined, { signal: interrupted });
    }
  }

  #pauseMs(): number {
    return this.#limitedUntil - performance.now();
  }

  /** Puts off the calls that were answered 429, for the time that the answer names. */
  #pause({ headers }: Response): void {
    const asked = Number(headers.get('retry-after') ?? Number.NaN) * 1000;
    const ms = asked > 0 ? Math.min(asked, retryAfterMsMax) : retryAfterMs;
    const now = performance.now();
    const until = Math.max(this.#limitedUntil, now + ms);
    this.limited.ms += until - Math.max(this.#limitedUntil, now);
    this.#limitedUntil = until;
  }

  async #sendOnce(method: string, path: string, body?: object): Promise<Response> {
    const answer = await this.#call(method, path, body);
    if (answer.status !== 401 || this.#signIn.apiKey !== '') return answer;
    await answer.arrayBuffer();
    await this.#renew();
    return await this.#call(method, path, body);
  }

  #call(method: string, path: string, body?: object): Promise<Response> {
    const headers = {
      ...(this.#authorization !== '' && { 'x-authorization': this.#authorization }),
      ...(body && { 'content-type': 'application/json' }),
    };
    return this.#caller.call(method, path, { headers, body: body && JSON.stringify(body) });
  }

  async #renew(): Promise<void> {
    const { rest, user, password } = this.#signIn;
    const answer = await this.#firstCall('POST', '/api/auth/login', { username: user, password });
    if (answer.status !== 200)
      throw new UsageError(`${rest} answered the sign-in of ${user} with ${await beginOf(answer)}`);
    const { token } = (await this.#firstJson(answer)) as { token: string };
    this.#authorization = `Bearer ${token}`;
  }

  /** Refuses a user who cannot create devices. A server without this call is asked for the devices themselves. */
  async #checkUser(): Promise<void> {
    const { rest, user, apiKey } = this.#signIn;
    const name = apiKey === '' ? user : 'the owner of --api-key';
    const answer = await this.#firstCall('GET', '/api/auth/user');
    if (apiKey !== '' && answer.status === 401)
      throw new UsageError(`${rest} refuses the API key with ${await beginOf(answer)}`);
    if (answer.status !== 200) return;
    const { authority = '' } = (await this.#firstJson(answer)) as { authority?: string };
    const sentence = wrongUsers[authority];
    if (sentence !== undefined) throw new UsageError(`${name} ${sentence}`);
  }

  /** Another service, and the page of a proxy, are named before anything is created. */
  #firstJson(answer: Response): Promise<unknown> {
    const { rest } = this.#signIn;
    return jsonOf(answer, (text) => new UsageError(`${rest} answered ${text}. Is it the REST interface?`));
  }

  async #firstCall(method: string, path: string, body?: object): Promise<Response> {
    try {
      return await this.#call(method, path, body);
    } catch (error) {
      const { rest } = this.#signIn;
      const isCut = (error as NodeJS.ErrnoException).code === 'ECONNRESET' && rest.startsWith('http:');
      const hint = isCut ? ' Is it a port with TLS? Then write https:.' : '';
      throw new UsageError(`${rest} does not answer: ${causeOf(error as Error)}.${hint}`);
    }
  }
}

async function jsonOf(answer: Response, errorOf: (text: string) => Error): Promise<unknown> {
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    throw errorOf(`${answer.status} without JSON: ${text.replaceAll(/\s+/g, ' ').slice(0, textCharsMax)}`);
  }
}

/** Returns the status and the first characters of an answer, on one line. */
async function beginOf(answer: Response): Promise<string> {
  const location = answer.headers.get('location');
  if (location !== null) return `${answer.status}, a redirect to ${location}: give that address`;
  const text = (await answer.text()).replaceAll(/\s+/g, ' ').trim();
  return `${answer.status}: ${messageOf(text) ?? text.slice(0, textCharsMax)}`;
}

/** Returns the sentence of an error of this interface. */
function messageOf(text: string): string | undefined {
  try {
    const { message } = JSON.parse(text) as { message?: string };
    return message;
  } catch {
    return undefined;
  }
}

function bulkBody(devices: NewDevice[]): object {
  const rows = devices.map(({ name, accessToken, isGateway }) => {
    return { name, accessToken, ...(isGateway && { additionalInfo: { gateway: true } }) };
  });
  return { devices: rows };
}

/**
 * Calls for all items, a few at once, until it is interrupted or a call fails; results in the order of the items. No
 * call is in flight when it ends: a device that is still being created could not be listed and removed.
 */
async function inTurns<Item, Result>(
  items: Item[],
  call: (item: Item) => Promise<Result>,
  interrupted?: AbortSignal,
): Promise<Result[]> {
  const results = new Array<Result>(items.length);
  let next = 0;
  let hasFailed = false;
  const goOn = async (): Promise<void> => {
    while (next < items.length && !hasFailed) {
      interrupted?.throwIfAborted();
      const n = next++;
      results[n] = await call(items[n]!).catch((error: unknown) => {
        hasFailed = true;
        throw error;
      });
    }
  };
  const ended = await Promise.allSettled(Array.from({ length: callsAtOnce }, goOn));
  const failure = ended.find((each) => each.status === 'rejected');
  if (failure) throw failure.reason;
  return results;
}
