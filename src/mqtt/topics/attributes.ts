/**
 * Attributes of the signed-in device. Client attributes are acknowledged after their commit. Shared attributes are sent
 * to the device as they change; when the device subscribes, the changes that it missed are sent. An update counts as
 * received when the client has acknowledged it (QoS 1) or when the update is written (QoS 0).
 */

import type { Admission } from '../../activity/admission.ts';
import type { Attributes } from '../../attributes/attributes.ts';
import { decodeAttributes } from '../../attributes/decode.ts';
import type { AttributeUpdates, Follower, Following } from '../../attributes/followers.ts';
import type { Update } from '../../attributes/update.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import { readJson, writeJson } from '../../value/json.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { type Operation, run } from '../session/operation.ts';
import type { Session } from '../session/session.ts';
import { forms } from './families.ts';
import type { Stream, TopicEntries } from './table.ts';

interface AttributeTopicsDeps {
  admission: Admission;
  attributes: Attributes;
  readBody: ReadBody;
  castNumericStrings: boolean;
}

const family = { v1: 'v1/devices/me/attributes', v2: 'v2/a' };

export function attributeTopics(deps: AttributeTopicsDeps): TopicEntries {
  const operation = saveAttributes(deps);
  return { exact: forms(family, family, () => operation) };
}

export function saveAttributes({
  admission,
  attributes,
  readBody,
  castNumericStrings,
}: AttributeTopicsDeps): Operation {
  return (publish) => {
    const { device } = publish.session;
    admission.admit(device);
    const entries = decodeAttributes(publish.payload, readBody, castNumericStrings);
    admission.points(device, entries.size);
    run(publish, () => attributes.save(device.number, 'CLIENT_SCOPE', entries, device.tenantId));
  };
}

export interface AttributeStreamDeps {
  updates: AttributeUpdates;
  log: Log;
  scheduler?: Scheduler;
}

export class AttributeStream implements Stream {
  readonly #deps: AttributeStreamDeps;
  readonly #pushers = new Map<Session, UpdatePusher>();

  constructor(deps: AttributeStreamDeps) {
    this.#deps = deps;
  }

  start(session: Session): void {
    this.#pushers.set(session, new UpdatePusher(session, this.#deps));
  }

  stop(session: Session): void {
    this.#pushers.get(session)?.stop();
    this.#pushers.delete(session);
  }
}

/** An update sent to the client. An update counts as received when all earlier updates have arrived, too. */
interface Sent {
  update: Update;
  /** Messages of the update that are not confirmed. */
  open: number;
  next: Sent | undefined;
}

class UpdatePusher implements Follower {
  readonly #session: Session;
  readonly #log: Log;
  readonly #following: Following;
  /** A linked list by `next`: removing the first of tens of thousands of entries is cheap. */
  #oldest: Sent | undefined;
  #newest: Sent | undefined;
  readonly #scheduler: Scheduler;
  /** Stops the timer of the next read. */
  #stopRetry = () => {};

  constructor(session: Session, { updates, log, scheduler = systemScheduler }: AttributeStreamDeps) {
    this.#session = session;
    this.#scheduler = scheduler;
    this.#log = log;
    this.#following = updates.follow(session.device, this);
  }

  stop(): void {
    this.#stopRetry();
    this.#following.leave();
  }

  update(update: Update): void {
    const sent: Sent = { update, open: 1, next: undefined };
    if (this.#newest === undefined) this.#oldest = sent;
    else this.#newest.next = sent;
    this.#newest = sent;
    if (!this.#push(update.json, sent)) {
      // The update is above the client's Maximum Packet Size: its parts may fit.
      for (const part of splitUpdate(update)) {
        sent.open += 1;
        if (this.#push(part, sent)) continue;
        sent.open -= 1;
        if (this.#session.isGone) return;
        const { id } = this.#session.device;
        this.#log.warn('attribute_update_too_large', { device: id, chars: part.length });
      }
      this.#arrived(sent);
    }
  }

  /** Reads the store again later, because the client would otherwise get no further updates. */
  failed(): void {
    this.#stopRetry();
    this.#stopRetry = this.#scheduler.after(limits.updateRetryMs, () => this.#following.ask());
  }

  /** `Sessions` ends the session itself. */
  close(): void {}

  #push(json: string, sent: Sent): boolean {
    const { subscriptions } = this.#session;
    const topic = subscriptions.topicOf('attributes');
    return this.#session.push(topic, json, subscriptions.qosOf(topic), (delivered) => {
      if (delivered) this.#arrived(sent);
    });
  }

  #arrived(sent: Sent): void {
    sent.open -= 1;
    while (this.#oldest?.open === 0) {
      const { update, next }: Sent = this.#oldest;
      this.#oldest = next;
      if (next === undefined) this.#newest = undefined;
      this.#following.confirmed(update);
    }
  }
}

/** Splits an update into a message for each key. */
export function splitUpdate({ kind, json }: Update): string[] {
  const document = readJson(Buffer.from(json));
  if (!(document instanceof Map)) return [];
  if (kind === 'changes') return [...document].map((member) => writeJson(new Map([member])));
  const deleted = document.get('deleted');
  return Array.isArray(deleted) ? deleted.map((key) => writeJson(new Map([['deleted', [key]]]))) : [];
}
