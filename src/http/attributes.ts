/**
 * Attributes over HTTP. POST stores client attributes and answers after the commit. GET reads client and shared
 * attributes. GET updates waits for a change of shared attributes. Order of checks: presence of a body and parameters,
 * token, rate limit, JSON.
 */
import type { Attributes } from '../attributes/attributes.ts';
import type { AttributeDecoder } from '../attributes/decode-thread.ts';
import type { AttributeUpdates } from '../attributes/followers.ts';
import { foundJson, keysOfText, readWanted, type WantedAttributes, wantedScopes } from '../attributes/request.ts';
import type { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { devicePlaceOwners } from '../base/places.ts';
import { booleanOf } from '../base/schema.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { type Exchange, faultAnswer } from '../uws/exchange.ts';
import { missingBody } from '../uws/missing-body.ts';
import type { HttpHandler, HttpServer } from '../uws/server.ts';
import type { TypedValue } from '../value/typed.ts';
import { type DeviceAuth, senderOf } from './device-auth.ts';
import type { LongPolls } from './long-poll.ts';

interface AttributesDoorDeps {
  server: HttpServer;
  deviceAuth: DeviceAuth;
  attributes: Attributes;
  updates: AttributeUpdates;
  polls: LongPolls;
  decoder: AttributeDecoder;
}

const json = { status: 200, contentType: 'application/json' };

export function attributesDoor(deps: AttributesDoorDeps): void {
  const { server, deviceAuth, attributes, updates, polls, decoder } = deps;
  const { admission } = deviceAuth;

  const save = (exchange: Exchange, token: string, device: CachedDevice, entries: Map<string, TypedValue>): void => {
    admission.points(device, entries.size);
    attributes.save(device.number, 'CLIENT_SCOPE', entries, device.tenantId).then(
      () => exchange.acknowledge(),
      (error: unknown) => deviceAuth.refuse(exchange, error, token),
    );
  };

  /** Stores the attributes of a known device; `body` is not large, and is read before this function returns. */
  const store = (exchange: Exchange, token: string, device: CachedDevice, body: Buffer): void => {
    try {
      admission.admit(device);
      save(exchange, token, device, decoder.decodeSmall(body));
    } catch (error) {
      deviceAuth.refuse(exchange, error, token, body);
    }
  };

  /** Handles the rare paths: a token that must be looked up, or a large body. */
  const storeLater = async (
    exchange: Exchange,
    token: string,
    known: CachedDevice | undefined,
    body: Buffer,
  ): Promise<void> => {
    try {
      const device = known ?? (await deviceAuth.find(token, exchange));
      admission.admit(device);
      save(exchange, token, device, await decoder.decode(body, device));
    } catch (error) {
      deviceAuth.refuse(exchange, error, token, body);
    }
  };

  const receive = (exchange: Exchange, token: string, body: Buffer): void => {
    if (body.length === 0) {
      deviceAuth.refuse(exchange, missingBody, token);
      return;
    }
    const device = deviceAuth.known(token, exchange);
    if (device !== undefined && !decoder.isLarge(body)) {
      store(exchange, token, device, body);
      return;
    }
    const sender = device && senderOf(device);
    void server.withBody(exchange, body, sender, (held) => storeLater(exchange, token, device, held));
  };

  const wait = async (exchange: Exchange, token: string, query: string): Promise<void> => {
    try {
      const waitMs = polls.waitMs(query);
      const device = await deviceAuth.admit(token, exchange);
      const poll = polls.hold(exchange, token, device, waitMs);
      if (!poll) return;
      const following = updates.follow(device, {
        update(update) {
          if (poll.answer({ ...json, body: update.json })) following.offered(update);
        },
        failed: (error) => void poll.answer(faultAnswer(deviceAuth.fault(error))),
        close: (reason) => void polls.recheck(poll, reason),
      });
      // A change after the 408 is given to the next poll only if the cursor of the device has begun.
      const begin = () => following.begin();
      const leave = () => following.leave();
      poll.beforeExpiry = begin;
      poll.onEnd = leave;
    } catch (error) {
      deviceAuth.refuse(exchange, error, token);
    }
  };

  const onRefused = (fault: Fault, token: string, exchange: Exchange) => deviceAuth.record(fault, token, exchange);
  const bytesMax = limits.attributeBodyBytesMax;
  server.rawPost('/api/v1/:token/attributes', { admit: deviceAuth.admitBody, bytesMax, onRefused }, receive);
  server.waitingGet('/api/v1/:token/attributes/updates', (exchange, token, query) => void wait(exchange, token, query));
  const read: HttpHandler = async (request) => {
    const { params, query } = request;
    const { alwaysClient, ...wanted } = wantedOfQuery(query);
    const device = await deviceAuth.admit(params[0]!, request);
    const body = foundJson(await readWanted(attributes, device, wanted), alwaysClient);
    return { ...json, body, owners: devicePlaceOwners(device) };
  };
  server.route('GET', '/api/v1/:token/attributes', deviceAuth.recorded(read));
}

function wantedOfQuery(query: string): WantedAttributes & { alwaysClient: boolean } {
  const parameters = new URLSearchParams(query);
  // A parameter that is repeated adds to one list.
  const keys = (list: string, all: string) =>
    parameters.getAll(all).some((text) => booleanOf(text)) ? 'all' : keysOfText(parameters.getAll(list).join(','));
  const client = keys('clientKeys', 'allClientKeys');
  const shared = keys('sharedKeys', 'allSharedKeys');
  return { ...wantedScopes(client, shared), alwaysClient: client !== undefined };
}
