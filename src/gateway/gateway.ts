/**
 * One connected gateway and its children, the devices for which the gateway acts. A child is routed from its connect
 * (or its first message) until its disconnect, a takeover by another session of the device, or the end of the gateway's
 * connection. Silence does not end a child. `Gateways` makes each `Gateway`.
 */

import type { AttributeUpdates } from '../attributes/followers.ts';
import { assert, Fault } from '../base/errors.ts';
import type { Work } from '../base/running-work.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { LocalDevices } from '../device/local-devices.ts';
import type { CachedDevice, DeviceRow } from '../device/model/cached-device.ts';
import { actsFor, type CustomerScope } from '../device/model/gateway-scope.ts';
import type { Place, Troubles } from '../diagnostics/troubles.ts';
import type { SessionEnd, Sessions } from '../downlink/sessions.ts';
import type { RpcSessions } from '../rpc/sessions.ts';
import { Child, type ParentGateway } from './child.ts';
import { gatewayGone, makerUnknown, noGateway, outOfScope, renamed, tooManyChildren } from './child-faults.ts';
import { ChildUpdates } from './child-updates.ts';
import { JournalWait } from './journal-wait.ts';
import type { GatewayLink } from './link.ts';
import type { NamedChild, NamedChildren } from './named-children.ts';
import type { ChildNames, FoundChildren, WantedChild } from './names.ts';
import { SpelledNames } from './spelled-names.ts';

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
  scheduler?: Scheduler;
  /** 0 = unlimited. */
  childrenMax: number;
  customerScope: CustomerScope;
}

type Refused = ReadonlyMap<string, Fault>;

export class Gateway implements ParentGateway, NamedChildren {
  readonly device: CachedDevice;
  readonly link: GatewayLink;
  readonly updates: ChildUpdates;
  readonly spelled = new SpelledNames<NamedChild>();
  readonly journalWait: JournalWait;
  readonly #deps: GatewayDeps;
  readonly #children = new Map<string, Child>();
  /** Children without a session of their own: the gateway itself, and devices of messages after the end. */
  readonly #withoutSession = new Map<number, Child>();
  /**
   * Whether updates, and commands, are sent. Each change makes a new object: a loop over the children stops when its
   * object is no longer the current one.
   */
  #attributes = { isOn: false };
  #rpc = { isOn: false };
  /** True when the connection has ended. */
  #ended = false;
  /** True when the gateway has ended and no operation waits. */
  #gone = false;
  /** Resolves when all operations so far have run. */
  #last: Promise<void> = Promise.resolve();
  /** Operations that wait, for devices or for their own end. */
  #waiting = 0;
  /** The scope and customer with which the children were last checked. */
  #checkedScope = '';

  constructor(deps: GatewayDeps, device: CachedDevice, link: GatewayLink) {
    this.#deps = deps;
    this.device = device;
    this.link = link;
    this.journalWait = new JournalWait(deps.monotonic);
    this.updates = new ChildUpdates(this, link, deps.updates, deps.scheduler);
  }

  /** The work that a failed assertion names. */
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
    if (child.isCurrent) return child;
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
   * Starts or stops sending shared attributes to the children. The updates that each child has not seen are sent first.
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

  /** Starts or stops sending commands to the children. Waiting commands are sent first. */
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
   * Ends the sessions of all children because the connection has ended. Messages received before the end are processed:
   * waiting operations still find their devices. No session is opened for them, because another connection may have
   * one.
   */
  end(): void {
    assert(!this.#ended, 'a gateway ends once', this);
    this.#ended = true;
    this.updates.end();
    this.#releaseAll();
    if (this.#waiting === 0) this.#gone = true;
    else void this.#last.then(() => this.#leave());
  }

  /** Called when the session of a child has ended, or when the gateway may not act for its device any more. */
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
    // Finds the children that were connected at the call of `run` and are not connected now.
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

  /** Returns the children that are not connected: `wanted` itself when none is, as in the first message of each. */
  #missing(wanted: readonly WantedChild[]): readonly WantedChild[] {
    const isMissing = ({ name }: WantedChild) => this.child(name) === undefined;
    return wanted.every(isMissing) ? wanted : wanted.filter(isMissing);
  }

  async #find(wanted: readonly WantedChild[]): Promise<FoundChildren> {
    const { names, childrenMax } = this.#deps;
    if (wanted.length === 0 || this.#gone) return new Map(wanted.map(({ name }) => [name, gatewayGone]));
    const room = childrenMax === 0 ? wanted.length : Math.max(0, childrenMax - this.size);
    const found = await names.find(this.device, room < wanted.length ? wanted.slice(0, room) : wanted);
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

  /**
   * Connects a child. Returns the refusal when the gateway may not act for the device, or when the device was renamed
   * since its lookup.
   */
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
    const known = this.#childOf(row.number);
    if (known) {
      this.#children.delete(known.name);
      this.#name(known, name);
      return;
    }
    // A gateway that names itself gets no second session.
    const isItself = row.number === this.device.number;
    // Keeps one string of two equal ones: the device has that of the row.
    const keptName = row.name === name ? row.name : name;
    const child = new Child(this, keptName, row.number, isItself ? this.device : undefined);
    this.#children.set(keptName, child);
    const hasSession = !isItself && !this.#ended;
    if (hasSession) {
      child.open(this.#deps.sessions, row);
    } else {
      this.#withoutSession.set(row.number, child);
      if (!isItself) child.device = this.#deps.devices.adopt(row);
    }
    // The device is set by now: a message that follows need not compare its name.
    this.spelled.set(child, usualSpelling(name));
    if (!hasSession) return;
    if (this.#attributes.isOn) child.follow(this.#deps.updates);
    if (this.#rpc.isOn) child.listen(this.#deps.rpcSessions);
  }

  /** Returns the routed child of this device, under any name. */
  #childOf(number: number): Child | undefined {
    const owner = this.#deps.sessions.get(number)?.owner;
    const isOwn = owner instanceof Child && owner.gateway === this && owner.isHere;
    return isOwn ? owner : this.#withoutSession.get(number);
  }

  /** Sets the name by which messages find the child. */
  #name(child: Child, name: string): void {
    child.name = name;
    this.spelled.set(child, usualSpelling(name));
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
    this.spelled.delete(child);
    this.updates.forget(child);
    this.#release(child);
  }

  #release(child: Child): void {
    child.drop();
    this.#withoutSession.delete(child.number);
    child.unfollow();
    child.unlisten();
    if (child.session) child.session.end();
    else if (child.device !== this.device) this.#deps.devices.release(child.device);
  }

  #releaseAll(): void {
    this.spelled.clear();
    for (const child of this.#children.values()) this.#release(child);
    this.#children.clear();
  }

  /** Called when the gateway has ended and no operation waits any more. */
  #leave(): void {
    this.#gone = true;
    this.#releaseAll();
  }

  /**
   * Calls `action` for each child while `isWanted` returns true: in batches, because ten thousand children must not
   * block the event loop.
   */
  #eachChild(action: (child: Child) => void, isWanted: () => boolean): void {
    const { scheduler = systemScheduler } = this.#deps;
    const children = this.#children.values();
    const next = (): void => {
      if (!isWanted() || this.#ended) return;
      for (let i = 0; i < childrenAtOnce; i += 1) {
        const { value: child, done } = children.next();
        if (done) return;
        if (child.device !== this.device) action(child);
      }
      scheduler.soon(next);
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

/** Returns the name as a message spells it between quotes, without unnecessary escapes. */
function usualSpelling(name: string): Buffer {
  return Buffer.from(JSON.stringify(name).slice(1, -1));
}

/** Children that one turn of the event loop handles. */
const childrenAtOnce = 500;
const noneRefused: Refused = new Map();
