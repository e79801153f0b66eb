/**
 * Attributes over HTTP (operations 2, 3 and 4): POST stores client attributes and answers after the commit, GET reads
 * client and shared ones, GET updates waits for a change of shared ones. Order of checks: presence of a body and
 * parameters, token, rate limit, JSON.
 */
import type { Attributes, Scope } from '../attributes/attributes.ts';
import { decodeAttributes } from '../attributes/decode.ts';
import type { AttributeUpdates } from '../attributes/updates.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import { asFault, type Exchange, faultAnswer } from '../uws/exchange.ts';
import type { HttpServer } from '../uws/server.ts';
import { strictForm } from '../value/typed.ts';
import type { LongPolls } from './long-poll.ts';
import type { Senders } from './senders.ts';

export interface AttributesDoorParts {
  server: HttpServer;
  senders: Senders;
  attributes: Attributes;
  updates: AttributeUpdates;
  polls: LongPolls;
  castNumericStrings: boolean;
  log: Log;
}

const json = { status: 200, contentType: 'application/json' };
const missingBody = badRequest('missing_body', 'Required request body is missing');

export function attributesDoor(parts: AttributesDoorParts): void {
  const { server, senders, attributes, updates, polls, castNumericStrings, log } = parts;
  const { rateLimits, touch } = senders;

  const refuse = (exchange: Exchange, error: unknown): void => {
    if (!(error instanceof Fault)) log.error('handler_bug', { path: 'attributes', error });
    exchange.refuse(asFault(error));
  };

  /** Stores what a known device sent; `body` is read before this returns. */
  const store = (exchange: Exchange, device: CachedDevice, body: Buffer): void => {
    try {
      rateLimits?.admit(device);
      const entries = decodeAttributes(body, castNumericStrings);
      rateLimits?.points(device, entries.size);
      touch(device);
      attributes.save(device.number, 'CLIENT_SCOPE', entries).then(
        () => exchange.acknowledge(),
        (error: unknown) => refuse(exchange, error),
      );
    } catch (error) {
      refuse(exchange, error);
    }
  };

  const storeLater = async (exchange: Exchange, token: string, body: Buffer): Promise<void> => {
    const held = server.holdBody(exchange, body);
    if (!held) return;
    try {
      store(exchange, await senders.find(token), held);
    } catch (error) {
      refuse(exchange, error);
    }
  };

  const receive = (exchange: Exchange, token: string, body: Buffer): void => {
    const device = senders.known(token);
    if (body.length === 0) exchange.refuse(missingBody);
    else if (device === undefined) void storeLater(exchange, token, body);
    else store(exchange, device, body);
  };

  const wait = async (exchange: Exchange, token: string, query: string): Promise<void> => {
    try {
      const waitMs = polls.waitMs(query);
      const device = await senders.admit(token);
      const poll = polls.hold(exchange, token, device, waitMs);
      if (!poll) return;
      const following = updates.follow(device.number, {
        news(news) {
          if (poll.answer({ ...json, body: news.json })) following.offered(news);
        },
        failed: (error) => void poll.answer(faultAnswer(asFault(error))),
        close: (reason) => void polls.recheck(poll, reason),
      });
      poll.onEnd = () => following.leave();
    } catch (error) {
      refuse(exchange, error);
    }
  };

  server.rawPost('/api/v1/:token/attributes', receive, limits.attributeBodyBytesMax);
  server.waitingGet('/api/v1/:token/attributes/updates', (exchange, token, query) => void wait(exchange, token, query));
  server.route('GET', '/api/v1/:token/attributes', async ({ params, query }) => {
    const wanted = readQuery(query);
    const device = await senders.admit(params[0]!);
    return { ...json, body: await readBody(attributes, device.number, wanted) };
  });
}

/** Keys of a scope; 'all', or undefined when the scope is not asked for. */
type WantedKeys = 'all' | string[] | undefined;

interface Wanted {
  client: WantedKeys;
  shared: WantedKeys;
  /** The member `client` is there even if nothing was found. */
  alwaysClient: boolean;
}

function readQuery(query: string): Wanted {
  const parameters = new URLSearchParams(query);
  const client = wantedKeys(parameters, 'clientKeys', 'allClientKeys');
  const shared = wantedKeys(parameters, 'sharedKeys', 'allSharedKeys');
  if (client === undefined && shared === undefined) return { client: 'all', shared: 'all', alwaysClient: false };
  return { client, shared, alwaysClient: client !== undefined };
}

/** A repeated list is one list, an empty one is none, and empty names in it are nobody's. */
function wantedKeys(parameters: URLSearchParams, list: string, all: string): WantedKeys {
  if (parameters.getAll(all).includes('true')) return 'all';
  const text = parameters.getAll(list).join(',');
  if (text === '') return undefined;
  const keys = text.split(',').filter((key) => key !== '');
  if (keys.length > limits.listedKeysMax) {
    throw badRequest('keys', `At most ${limits.listedKeysMax} keys can be asked for at once.`);
  }
  // No key holds the character NUL, and the database takes none.
  return keys.filter((key) => !key.includes('\0'));
}

async function readBody(attributes: Attributes, device: number, wanted: Wanted): Promise<string> {
  const members: string[] = [];
  const scopes = await readWanted(attributes, device, wanted);
  if (scopes.client.length > 0 || wanted.alwaysClient) members.push(`"client":{${scopes.client.join(',')}}`);
  if (scopes.shared.length > 0) members.push(`"shared":{${scopes.shared.join(',')}}`);
  return `{${members.join(',')}}`;
}

async function readWanted(attributes: Attributes, device: number, { client, shared }: Wanted) {
  const found: { client: string[]; shared: string[] } = { client: [], shared: [] };
  const asked: Scope[] = [];
  if (client !== undefined) asked.push('CLIENT_SCOPE');
  if (shared !== undefined) asked.push('SHARED_SCOPE');
  const listed = client === 'all' || shared === 'all' ? null : [...new Set([...(client ?? []), ...(shared ?? [])])];
  if (listed?.length === 0) return found;
  for (const { scope, key, value } of await attributes.readScopes(device, asked, listed)) {
    const [name, keys] = scope === 'CLIENT_SCOPE' ? (['client', client] as const) : (['shared', shared] as const);
    if (keys === 'all' || keys!.includes(key)) found[name].push(`${JSON.stringify(key)}:${strictForm(value)}`);
  }
  return found;
}
