/**
 * A child of a connected gateway: the session of its device, and the listeners for updates and commands. A child passes
 * updates, commands and the end of its session to its gateway. There may be ten thousand children, so state that they
 * share is in `Gateway` and `ChildUpdates`.
 */

import type { AttributeUpdates, Follower, Following } from '../attributes/followers.ts';
import type { Update } from '../attributes/update.ts';
import { assert, type Fault, type Subject } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { CachedDevice, DeviceRow } from '../device/model/cached-device.ts';
import type { DeviceSession, SessionEnd, SessionOwner, Sessions } from '../downlink/sessions.ts';
import type { RpcRequest } from '../rpc/rpc.ts';
import type { ConfirmRpc, RpcSession, RpcSessions } from '../rpc/sessions.ts';
import type { Dropped, GatewayLink } from './link.ts';
import type { NamedChild } from './named-children.ts';

/** The gateway, as its children use it. */
export interface ParentGateway extends Subject {
  readonly device: CachedDevice;
  readonly link: GatewayLink;
  readonly updates: {
    /** Sends an update to the gateway. */
    send(child: Child, update: Update): void;
    /** Called when the updates of the child could not be read. */
    askLater(child: Child): void;
  };
  /** Returns monotonic milliseconds. */
  readonly monotonic: () => number;
  /** Called when the device of the child was read again. */
  checkChild(child: Child): void;
  /** Called when the session of the child has ended. */
  lost(child: Child, reason: SessionEnd): void;
}

/** An update that the gateway has not confirmed, or that waits for the confirmation of an earlier one. */
interface SentUpdate {
  readonly update: Update;
  isOpen: boolean;
}

export class Child implements NamedChild, SessionOwner, Follower, RpcSession {
  readonly number: number;
  place = 0;
  device: CachedDevice;
  /** The name that the gateway uses; the name of the device itself changes when a user renames it. */
  name: string;
  readonly gateway: ParentGateway;
  #isHere = true;
  session: DeviceSession | undefined = undefined;
  charged = 0;
  refusal: Fault | undefined = undefined;

  #following: Following | undefined = undefined;
  /** Unconfirmed updates, the oldest first. */
  #sent: SentUpdate[] | undefined = undefined;
  #leaveRpc: (() => void) | undefined = undefined;
  /** Monotonic time of the last notice that the child was refused. */
  #noticedMs: number | undefined = undefined;

  /** `device` undefined = `open` sets the device. */
  constructor(gateway: ParentGateway, name: string, number: number, device: CachedDevice | undefined) {
    this.number = number;
    this.device = device as CachedDevice;
    this.name = name;
    this.gateway = gateway;
  }

  open(sessions: Sessions, row: DeviceRow): void {
    assert(this.session === undefined, 'a child has one session', this.gateway);
    this.session = sessions.open(row, this);
    this.device = this.session.device;
  }

  get through(): CachedDevice {
    return this.gateway.device;
  }

  /** False when the gateway has dropped the child. */
  get isHere(): boolean {
    return this.#isHere;
  }

  drop(): void {
    this.#isHere = false;
  }

  /** False after a rename or a drop. */
  get isCurrent(): boolean {
    return this.#isHere && this.device.name === this.name;
  }

  follow(updates: AttributeUpdates): void {
    assertRouted(this);
    this.#following ??= updates.follow(this.device, this);
  }

  unfollow(): void {
    this.#following?.leave();
    this.#following = undefined;
    this.#sent = undefined;
  }

  listen(sessions: RpcSessions): void {
    assertRouted(this);
    this.#leaveRpc ??= sessions.listen(this.device.number, this);
  }

  unlisten(): void {
    this.#leaveRpc?.();
    this.#leaveRpc = undefined;
  }

  /** Reads the updates that the device has not seen. */
  ask(): void {
    this.#following?.ask();
  }

  // Methods of `Follower`, for the shared attributes of the device.

  update(update: Update): void {
    this.gateway.updates.send(this, update);
  }

  /** Registers an update. It counts as received when all earlier updates have arrived as well. */
  sent(update: Update): SentUpdate {
    const sent = { update, isOpen: true };
    this.#sent ??= [];
    this.#sent.push(sent);
    return sent;
  }

  arrived(sent: SentUpdate): void {
    sent.isOpen = false;
    while (this.#sent?.[0]?.isOpen === false) this.#following?.confirmed(this.#sent.shift()!.update);
  }

  failed(): void {
    this.gateway.updates.askLater(this);
  }

  // Methods of `RpcSession`, for the commands to the device.

  deliver(request: RpcRequest, confirm: ConfirmRpc): boolean {
    assertRouted(this);
    return this.gateway.link.rpc(this.device.name, request, confirm);
  }

  /** Changed credentials of the child do not matter here, and `Sessions` reports a deleted device. */
  close(): void {}

  // Method of `SessionOwner`.

  sessionEnded(reason: SessionEnd): void {
    this.gateway.lost(this, reason);
  }

  /** Notifies the gateway that the child was refused, at most once in `gatewayNoticeMs`. */
  noteRefused(reason: Dropped): void {
    assertRouted(this);
    const now = this.gateway.monotonic();
    if (this.#noticedMs !== undefined && now - this.#noticedMs < limits.gatewayNoticeMs) return;
    this.#noticedMs = now;
    this.gateway.link.dropped(this.device.name, reason);
  }
}

function assertRouted({ isHere, gateway }: Child): void {
  assert(isHere, 'a child that is not routed does nothing', gateway);
}
