/**
 * A signed-in connection as operations and streams use it: its device, its subscriptions, and sending to it. The
 * interface `SessionLink` hides the connection itself (`connection.ts`), so that a test can replace it.
 */
import type { CachedDevice } from '../../device/model/cached-device.ts';
import type { ProfileTopics } from '../../device/model/profile-topics.ts';
import type { SlicedFile } from '../../ota/chunks.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import type { ProtocolLevel, QoS } from '../wire/protocol.ts';
import { Subscriptions } from './subscriptions.ts';

export type SessionKind = 'device' | 'gateway' | 'provision';
/** Called once with the outcome of a message to the client. */
export type Confirm = (delivered: boolean) => void;

/** The part of a connection that its session uses. */
export interface SessionLink {
  /** True when nothing can reach the client any more. Messages of the client may still be handled. */
  readonly isGone: boolean;
  push(topic: string, payload: string | Uint8Array, qos: QoS, confirm: Confirm | undefined): boolean;
  sendFile(topic: string, file: SlicedFile, qos: QoS, onEnd: () => void): FileOutcome;
  close(reason: CloseReason): void;
}

/**
 * `too_large`: above the client's Maximum Packet Size, or above the size that MQTT allows. `busy`: another file is
 * being sent.
 */
export type FileOutcome = 'taken' | 'too_large' | 'busy' | 'gone';

interface SessionFacts {
  /** Undefined on a provisioning session. */
  device: CachedDevice | undefined;
  kind: SessionKind;
  level: ProtocolLevel;
  clientId: string;
  remoteAddress: string;
  profileTopics: ProfileTopics | undefined;
}

export class Session {
  /** The signed-in device. Not set on a provisioning session. */
  readonly device: CachedDevice;
  readonly kind: SessionKind;
  readonly level: ProtocolLevel;
  readonly clientId: string;
  readonly remoteAddress: string;
  /** Topics that the device's profile adds to the standard topics. */
  readonly profileTopics: ProfileTopics | undefined;
  readonly #link: SessionLink;
  #subscriptions: Subscriptions | undefined = undefined;
  #onEnd: ((reason: CloseReason) => void)[] | undefined = undefined;
  #endedBy: CloseReason | undefined = undefined;

  constructor(link: SessionLink, facts: SessionFacts) {
    this.#link = link;
    this.device = facts.device as CachedDevice;
    this.kind = facts.kind;
    this.level = facts.level;
    this.clientId = facts.clientId;
    this.remoteAddress = facts.remoteAddress;
    this.profileTopics = facts.profileTopics;
  }

  get tenantId(): string {
    return this.device.tenantId;
  }

  get subscriptions(): Subscriptions {
    this.#subscriptions ??= new Subscriptions();
    return this.#subscriptions;
  }

  /** True when nothing can reach the client any more. The last messages of the client may still be handled. */
  get isGone(): boolean {
    return this.#endedBy !== undefined || this.#link.isGone;
  }

  /** The reason for which the session ended; undefined while it is open. */
  get endedBy(): CloseReason | undefined {
    return this.#endedBy;
  }

  /**
   * Sends a PUBLISH. Calls `confirm(true)` on PUBACK (QoS 1) or when written (QoS 0), `confirm(false)` when the
   * connection ended before that. Returns false when the message was not taken, and then never calls `confirm`: the
   * connection has ended or is being closed because it does not read, or the packet is above the client's Maximum
   * Packet Size. Messages above the client's Receive Maximum are queued.
   */
  push(topic: string, payload: string | Uint8Array, qos: QoS, confirm?: Confirm): boolean {
    if (this.#endedBy !== undefined) return false;
    return this.#link.push(topic, payload, qos, confirm);
  }

  /**
   * Sends a PUBLISH slice by slice; no other packet is sent or read meanwhile. After the outcome 'taken', `onEnd` is
   * called once: all of the file is written, or the connection has ended.
   */
  sendFile(topic: string, file: SlicedFile, qos: QoS, onEnd: () => void): FileOutcome {
    return this.#endedBy === undefined ? this.#link.sendFile(topic, file, qos, onEnd) : 'gone';
  }

  close(reason: CloseReason): void {
    if (this.#endedBy === undefined) this.#link.close(reason);
  }

  /** Registers a callback, which is called once, in order of registration; at once when the session has ended. */
  onEnd(callback: (reason: CloseReason) => void): void {
    if (this.#endedBy !== undefined) {
      callback(this.#endedBy);
      return;
    }
    this.#onEnd ??= [];
    this.#onEnd.push(callback);
  }

  /** Called once by the connection. */
  ended(reason: CloseReason): void {
    this.#endedBy = reason;
    const callbacks = this.#onEnd;
    this.#onEnd = undefined;
    if (callbacks) for (const callback of callbacks) callback(reason);
  }
}
