/**
 * One connected gateway and its children: the devices for which it acts, and delivery to them. A child is routed from
 * its connect (or its first message) until its disconnect, a takeover by another session of the device, or the end of
 * the gateway's connection. Silence does not end a child. Ten thousand children are normal: shared state is in
 * `Gateway`, and a child adds a few small objects. `Gateways` makes each `Gateway`; a door supplies the `GatewayLink`.
 */

import type { AttributeUpdates, Follower, Following } from '../attributes/followers.ts';
import type { Update } from '../attributes/update.ts';
import { assert, Fault, notFound, type Subject, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Work } from '../base/running-work.ts';
import type { LocalDevices } from '../device/local-devices.ts';
import type { CachedDevice, DeviceRow } from '../device/model/cached-device.ts';
import { actsFor, type CustomerScope } from '../device/model/gateway-scope.ts';
import type { Place, Troubles } from '../diagnostics/troubles.ts';
import type { DeviceSession, SessionEnd, SessionOwner, Sessions } from '../downlink/sessions.ts';
import type { RpcRequest } from '../rpc/rpc.ts';
import type { ConfirmRpc, RpcSession, RpcSessions } from '../rpc/sessions.ts';
import type { NamedChild, NamedChildren } from './named-children.ts';
import type { ChildNames, FoundChildren, WantedChild } from './names.ts';

/** The reason why a child is no longer routed, or was refused. */
export type Dropped = Exclude<SessionEnd, 'credentials_changed'> | 'rate_limit' | 'out_of_scope';

/** Sends to a gateway. */
export interface GatewayLink {
  /** The address of the gateway. */
  readonly remoteAddress?: string;
  /** True: `confirm` is called once, now or later. False: the gateway did not take the update. */
  attributes(name: string, update: Update, confirm: (delivered: boolean) => void): boolean;
  /** Same contract as `RpcSession.deliver`. */
  rpc(name: string, request: RpcRequest, confirm: ConfirmRpc): boolean;
  dropped(name: string, reason: Dropped): void;
}

export interface GatewayDeps {
  sessions: Sessions;
  devices: LocalDevices;
  names: ChildNames;
  updates: AttributeUpdates;
  rpcSessions: RpcSessions;
  /** Records what happens to children. */
  troubles: Troubles;
  /** Returns monotonic milliseconds. */
  monotonic: () => number;
  /** 0 = unlimited. */
  childrenMax: number;
  customerScope: CustomerScope;
}

type Refused = ReadonlyMap<string, Fault>;

interface Sent {
  readonly update: Update;
  isOpen: boolean;
}

export class Child implements NamedChild, SessionOwner, Follower, RpcSession {
  readonly gateway: Gateway;
  device: CachedDevice;
  /** The name that the gateway uses; the name of the device itself changes when a user renames it. */
  name: string;
  isHere = true;
  session: DeviceSession | undefined = undefined;

  /**
   * Owned by `telemetry.ts`: the name as last spelled in a message, the next child in that message, and marks of
   * messages.
   */
  bytes: Buffer;
  next: NamedChild | undefined = undefined;
  seen = 0;
  charged = 0;
  refusal: Fault | undefined = undefined;

  #following: Following | undefined = undefined;
  /** Unconfirmed updates, the oldest first. */
  #sent: Sent[] | undefined = undefined;
  #leaveRpc: (() => void) | undefined = undefined;
  #noticedMs = Number.NEGATIVE_INFINITY;

  /** `device` undefined: `open` finds the device. */
  constructor(gateway: Gateway, name: string, device: CachedDevice | undefined) {
    this.gateway = gateway;
    this.device = device as CachedDevice;
    this.name = name;
    this.bytes = nameBytes(name);
  }

  open(sessions: Sessions, row: DeviceRow): void {
    assert(this.session === undefined, 'a child has one session', this.gateway);
    this.session = sessions.open(row, this);
    this.device = this.session.device;
  }

  get through(): CachedDevice {
    return this.gateway.device;
  }

  /** False after a rename or a drop. */
  get isCurrent(): boolean {
    return this.isHere && this.device.name === this.name;
  }

  follow(updates: AttributeUpdates): void {
    this.#assertRouted();
    this.#following ??= updates.follow(this.device, this);
  }

  unfollow(): void {
    this.#following?.leave();
    this.#following = undefined;
    this.#sent = undefined;
  }

  listen(sessions: RpcSessions): void {
    this.#assertRouted();
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

  // Methods of a follower of shared attributes.
  update(update: Update): void {
    this.gateway.notify(this, update);
  }

  /** Registers an update. It counts as received when all earlier updates have arrived as well. */
  sent(update: Update): Sent {
    const sent = { update, isOpen: true };
    this.#sent ??= [];
    this.#sent.push(sent);
    return sent;
  }

  arrived(sent: Sent): void {
    sent.isOpen = false;
    while (this.#sent?.[0]?.isOpen === false) this.#following?.confirmed(this.#sent.shift()!.update);
  }

  failed(): void {
    this.gateway.askLater(this);
  }

  // Methods of a session for commands.
  deliver(request: RpcRequest, confirm: ConfirmRpc): boolean {
    this.#assertRouted();
    return this.gateway.link.rpc(this.device.name, request, confirm);
  }

  /** Changed credentials of the child do not matter here, and `Sessions` reports a deleted device. */
  close(): void {}

  // Methods of the session of the device.
  sessionEnded(reason: SessionEnd): void {
    this.gateway.lost(this, reason);
  }

  /** Notifies the gateway that the child was refused, at most once in `gatewayNoticeMs`. */
  noteRefused(reason: Dropped): void {
    this.#assertRouted();
    const now = this.gateway.monotonic();
    if (now - this.#noticedMs < limits.gatewayNoticeMs) return;
    this.#noticedMs = now;
    this.gateway.link.dropped(this.device.name, reason);
  }

  #assertRouted(): void {
    assert(this.isHere, 'a child that is not routed does nothing', this.gateway);
  }
}

export class Gateway implements Subject, NamedChildren {
  readonly device: CachedDevice;
  readonly link: GatewayLink;
  /** Owned by `telemetry.ts`: the child named first in the last message. */
  first: NamedChild | undefined = undefined;
  readonly #deps: GatewayDeps;
  readonly #children = new Map<string, Child>();
  readonly #byNumber = new Map<number, Child>();
  /**
   * Whether updates are sent. A change makes a new object, so that a loop over the children notices that it is
   * outdated.
   */
  #attributes = { isOn: false };
  #rpc = { isOn: false };
  /** True when the connection has ended. */
  #ended = false;
  /** True when the gateway has ended and no operation waits. */
  #gone = false;
  /** The operations that wait for devices, in order. */
  #last: Promise<void> = Promise.resolve();
  #waiting = 0;
  /** The number of unconfirmed updates, and the children whose updates wait for confirmations. */
  #updatesInFlight = 0;
  readonly #behind = new Set<Child>();
  #retryTimer: NodeJS.Timeout | undefined = undefined;
  /** The scope and customer with which the children were last checked. */
  #checkedScope = '';

  constructor(deps: GatewayDeps, device: CachedDevice, link: GatewayLink) {
    this.#deps = deps;
    this.device = device;
    this.link = link;
  }

  /** The work of which an assertion says that it went wrong. */
  work(): Work {
    return { what: 'children of gateway', caller: `device ${this.device.id}` };
  }

  get size(): number {
    return this.#children.size;
  }

  get monotonic(): () => number {
    return this.#deps.monotonic;
  }

  /** True while earlier operations wait for their devices. Operations that must keep their order wait as well. */
  get isBusy(): boolean {
    return this.#waiting > 0;
  }

  child(name: string): Child | undefined {
    const child = this.#children.get(name);
    if (child === undefined) return undefined;
    assert(child.isHere, 'a child that is found by its name is routed', this);
    if (child.device.name === name) return child;
    this.#rename(child);
    return this.#children.get(name);
  }

  /**
   * Calls `operation` when every device of `wanted` is connected or refused: at once if possible, else later, in the
   * order of the calls. A waiting operation delays all later ones. After the end no further device is connected.
   */
  run(wanted: readonly WantedChild[], operation: (refused: Refused) => unknown): void {
    const missing = this.#missing(wanted);
    if (missing.length === 0 && this.#waiting === 0) {
      const running = operation(noneRefused);
      if (running instanceof Promise) this.#last = this.#waitFor(running);
      return;
    }
    this.#waiting += 1;
    this.#last = this.#runLater(this.#last, wanted, missing, operation);
  }

  /**
   * Connects children in the middle of an operation of `run`, which keeps the order. Returns the refused children.
   */
  async connect(wanted: readonly WantedChild[]): Promise<Refused> {
    assert(this.#waiting > 0, 'children are connected in the middle of an operation', this);
    return this.#connect(await this.#find(this.#missing(wanted)));
  }

  /** Returns false when the child was not connected. */
  disconnect(name: string): boolean {
    const child = this.child(name);
    if (!child) return false;
    this.#drop(child);
    return true;
  }

  /**
   * Starts or stops sending shared attributes to the children. The first updates are those that each child has not
   * seen.
   */
  setAttributes(isOn: boolean): void {
    assert(!this.#ended, 'a gateway that has ended has no streams', this);
    const { updates } = this.#deps;
    const stream = { isOn };
    this.#attributes = stream;
    this.#eachChild(
      (child) => (isOn ? child.follow(updates) : child.unfollow()),
      () => this.#attributes === stream,
    );
  }

  /** Starts or stops sending commands to the children. The first commands are those that wait. */
  setRpc(isOn: boolean): void {
    assert(!this.#ended, 'a gateway that has ended has no streams', this);
    const { rpcSessions } = this.#deps;
    const stream = { isOn };
    this.#rpc = stream;
    this.#eachChild(
      (child) => (isOn ? child.listen(rpcSessions) : child.unlisten()),
      () => this.#rpc === stream,
    );
  }

  /**
   * Ends the sessions of all children because the connection has ended. Messages received before are processed: waiting
   * operations find their devices, but open no sessions, which another connection may have by now.
   */
  end(): void {
    assert(!this.#ended, 'a gateway ends once', this);
    this.#ended = true;
    clearTimeout(this.#retryTimer);
    this.#behind.clear();
    this.#releaseAll();
    if (this.#waiting === 0) this.#gone = true;
    else void this.#last.then(() => this.#leave());
  }

  /** Called by `Child` only. An update above the cap of unconfirmed updates is read again later. */
  notify(child: Child, update: Update): void {
    this.#assertChild(child);
    const { lossFree } = this.#deps.updates;
    // After an omitted update the later updates of the child wait.
    if (this.#behind.has(child)) return;
    if (lossFree && this.#updatesInFlight >= limits.gatewayUpdatesInFlightMax) {
      this.#behind.add(child);
      return;
    }
    const sent = child.sent(update);
    // Counts the update before the call: the link confirms an update of which no part can be sent at once.
    this.#updatesInFlight += 1;
    const taken = this.link.attributes(child.device.name, update, (delivered) => {
      this.#updatesInFlight -= 1;
      assert(this.#updatesInFlight >= 0, 'an update is confirmed once', this);
      if (delivered) child.arrived(sent);
      this.#askBehind();
    });
    if (!taken) this.#updatesInFlight -= 1;
  }

  /** Called when the store could not be read. */
  askLater(child: Child): void {
    this.#assertChild(child);
    this.#behind.add(child);
    this.#retryTimer ??= setTimeout(() => {
      this.#retryTimer = undefined;
      this.#askBehind();
    }, limits.gatewayRetryMs);
  }

  lost(child: Child, reason: SessionEnd | 'out_of_scope'): void {
    this.#assertChild(child);
    this.#deps.troubles.disconnected(child.device, { reason, message: lostSentences[reason] }, this.#place);
    this.#drop(child);
    if (reason !== 'credentials_changed') this.link.dropped(child.name, reason);
  }

  /** Records the refusals of one message for the children that are connected. */
  recordRefusals(refusals: Iterable<[string, Fault]>): void {
    for (const [name, fault] of refusals) {
      const child = this.child(name);
      if (child) this.#deps.troubles.refused(child.device, fault, this.#place);
    }
  }

  get #place(): Place {
    return { door: 'gateway', address: () => this.link.remoteAddress ?? '' };
  }

  /** Called by `Gateways` when the device of a child was read again: its customer may have changed. */
  checkChild(child: Child): void {
    assert(child.gateway === this, 'a gateway checks its own children', this);
    if (child.isHere && this.#refusal(child.name, child.device)) this.lost(child, 'out_of_scope');
  }

  /** Called by `Gateways` when the gateway's own device was read again. */
  checkChildren(): void {
    assert(!this.#ended, 'a gateway that has ended has no children to check', this);
    const { customerId, isConfined, isGateway } = this.device;
    const scope = `${customerId} ${isConfined} ${isGateway}`;
    if (scope === this.#checkedScope) return;
    this.#checkedScope = scope;
    this.#eachChild(
      (child) => this.checkChild(child),
      () => this.#checkedScope === scope,
    );
  }

  /** Only a child that is routed calls its gateway. */
  #assertChild(child: Child): void {
    assert(child.gateway === this && child.isHere, 'a child that is not routed does nothing', this);
  }

  async #runLater(
    before: Promise<void>,
    wanted: readonly WantedChild[],
    missing: readonly WantedChild[],
    operation: (refused: Refused) => unknown,
  ): Promise<void> {
    const finding = this.#find(missing);
    await before;
    let found = await finding;
    // Children that were connected at the call and are not connected now.
    const gone = this.#missing(wanted).filter(({ name }) => !found.has(name));
    if (gone.length > 0) found = new Map([...found, ...(await this.#find(gone))]);
    this.#waiting -= 1;
    assert(this.#waiting >= 0, 'an operation waits once', this);
    const running = operation(this.#connect(found));
    if (running instanceof Promise) await this.#waitFor(running);
  }

  async #waitFor(running: Promise<unknown>): Promise<void> {
    this.#waiting += 1;
    await running;
    this.#waiting -= 1;
  }

  #missing(wanted: readonly WantedChild[]): WantedChild[] {
    return wanted.filter(({ name }) => this.child(name) === undefined);
  }

  async #find(wanted: readonly WantedChild[]): Promise<FoundChildren> {
    const { names, childrenMax } = this.#deps;
    if (wanted.length === 0 || this.#gone) return new Map(wanted.map(({ name }) => [name, gatewayGone]));
    const room = childrenMax === 0 ? wanted.length : Math.max(0, childrenMax - this.size);
    const found = await names.find(this.device, wanted.slice(0, room));
    for (const { name } of wanted.slice(room)) found.set(name, tooManyChildren(childrenMax));
    return found;
  }

  /** Connects found children and returns the refused ones. */
  #connect(found: FoundChildren): Refused {
    const { childrenMax } = this.#deps;
    let refused: Map<string, Fault> | undefined;
    for (const [name, outcome] of found) {
      let fault: Fault | undefined;
      if (outcome instanceof Fault) fault = outcome;
      else if (this.#gone) fault = gatewayGone;
      else if (this.#children.has(name)) continue;
      else if (childrenMax > 0 && this.size >= childrenMax) fault = tooManyChildren(childrenMax);
      else fault = this.#attach(name, outcome);
      if (!fault) continue;
      refused ??= new Map();
      refused.set(name, fault);
    }
    return refused ?? noneRefused;
  }

  /** Returns the refusal of a device for which this gateway does not act; undefined when it acts for the device. */
  #refusal(name: string, device: DeviceRow | CachedDevice): Fault | undefined {
    const { customerScope } = this.#deps;
    if (!this.device.isGateway && customerScope === 'customer') return noGateway;
    switch (actsFor(this.device, device, customerScope)) {
      case true:
        return undefined;
      case false:
        return outOfScope(name, this.device, device);
      case undefined:
        return makerUnknown;
    }
  }

  /** Returns a Fault when the gateway may not act for the device, or the device was renamed since its lookup. */
  #attach(name: string, row: DeviceRow): Fault | undefined {
    const refusal = this.#refusal(name, row);
    if (refusal) {
      this.#deps.troubles.connectRefused(row, refusal, this.#place);
      return refusal;
    }
    this.#open(name, row);
    const child = this.child(name);
    if (child) {
      this.#deps.troubles.connected(child.device, this.#place);
      return undefined;
    }
    this.#deps.names.forget(row.number);
    return renamed;
  }

  #open(name: string, row: DeviceRow): void {
    const known = this.#byNumber.get(row.number);
    if (known) {
      this.#children.delete(known.name);
      this.#name(known, name);
      return;
    }
    // A gateway that names itself gets no second session.
    const isItself = row.number === this.device.number;
    const child = new Child(this, name, isItself ? this.device : undefined);
    this.#children.set(name, child);
    this.#byNumber.set(row.number, child);
    if (isItself) return;
    if (this.#ended) {
      child.device = this.#deps.devices.adopt(row);
      return;
    }
    child.open(this.#deps.sessions, row);
    if (this.#attributes.isOn) child.follow(this.#deps.updates);
    if (this.#rpc.isOn) child.listen(this.#deps.rpcSessions);
  }

  #name(child: Child, name: string): void {
    child.name = name;
    child.bytes = nameBytes(name);
    this.#children.set(name, child);
  }

  /** Handles a child whose device was renamed by a user. */
  #rename(child: Child): void {
    this.#children.delete(child.name);
    const { name } = child.device;
    if (this.#children.has(name)) this.#drop(child);
    else this.#name(child, name);
  }

  #drop(child: Child): void {
    if (!child.isHere) return;
    if (this.#children.get(child.name) === child) this.#children.delete(child.name);
    this.#byNumber.delete(child.device.number);
    this.#behind.delete(child);
    this.#release(child);
  }

  #release(child: Child): void {
    child.isHere = false;
    child.unfollow();
    child.unlisten();
    if (child.session) child.session.end();
    else if (child.device !== this.device) this.#deps.devices.release(child.device);
  }

  #releaseAll(): void {
    for (const child of this.#children.values()) this.#release(child);
    this.#children.clear();
    this.#byNumber.clear();
  }

  #leave(): void {
    this.#gone = true;
    this.#releaseAll();
  }

  #askBehind(): void {
    if (this.#ended) return;
    for (const child of this.#behind) {
      if (this.#updatesInFlight >= limits.gatewayUpdatesInFlightMax / 2) return;
      this.#behind.delete(child);
      child.ask();
    }
  }

  /** Runs in batches, because ten thousand children must not block the event loop. */
  #eachChild(action: (child: Child) => void, isWanted: () => boolean): void {
    const children = this.#children.values();
    const next = (): void => {
      if (!isWanted() || this.#ended) return;
      for (let i = 0; i < piece; i += 1) {
        const { value: child, done } = children.next();
        if (done) return;
        if (child.device !== this.device) action(child);
      }
      setImmediate(next);
    };
    next();
  }
}

const lostSentences: Record<SessionEnd | 'out_of_scope', string> = {
  taken_over: 'A newer connection of the same device took over.',
  credentials_changed: 'The credentials of the device were changed.',
  device_deleted: 'The device was deleted.',
  out_of_scope: 'The gateway does not act for the device any more.',
};

/** Children that are switched in one turn of the event loop. */
const piece = 500;
const noneRefused: Refused = new Map();
const renamed = unavailable('child_renamed', 'The device was renamed at this moment; send again.');
/** The refusal of a message whose devices were all connected a moment earlier. */
export const childLost = unavailable(
  'child_lost',
  'A device of the message was taken over at this moment; send again.',
);
const gatewayGone = notFound('The connection of the gateway has ended.');

const noGateway = new Fault('no_gateway', 'This device is not a gateway any more.');
const makerUnknown = unavailable('child_maker', 'Devices cannot be looked up at the moment; send again.');

function outOfScope(name: string, gateway: CachedDevice, device: DeviceRow | CachedDevice): Fault {
  const isOfOther = gateway.customerId !== null && device.customerId !== gateway.customerId;
  const reason = isOfOther
    ? 'the gateway belongs to a customer, and the device does not belong to the same one'
    : 'it was not made by this gateway, and the "gatewayScope" of the gateway is "own" or users of a former customer know its credentials';
  const message = `Device ${JSON.stringify(name)} is not connected through this gateway: ${reason}.`;
  return new Fault('child_out_of_scope', message);
}

/** Returns the name as a message spells it between quotes, without unnecessary escapes. */
function nameBytes(name: string): Buffer {
  return Buffer.from(JSON.stringify(name).slice(1, -1));
}

function tooManyChildren(childrenMax: number): Fault {
  const message = `This gateway has its limit of ${childrenMax} connected devices (gateway.childrenMax).`;
  return new Fault('gateway_children', message);
}
