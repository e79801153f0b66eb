/**
 * The gateways that are connected to this worker, and the state that they share: their collaborators, and the room for
 * messages that wait for devices.
 */
import { ByteBudget } from '../base/byte-budget.ts';
import { assert, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { Child } from './child.ts';
import { Gateway, type GatewayDeps } from './gateway.ts';
import type { GatewayLink } from './link.ts';

export class Gateways {
  readonly #deps: GatewayDeps;
  readonly #open = new Set<Gateway>();
  /**
   * Gateways by the number of their device. Of two connections of one device the newer one is kept, because the older
   * one is ending.
   */
  readonly #byDevice = new Map<number, Gateway>();
  readonly #held = new ByteBudget(limits.gatewayHeldBytesMax);

  constructor(deps: GatewayDeps, metrics: Metrics) {
    this.#deps = deps;
    // A change of a gateway or of a child's device may change what the gateway may act for.
    deps.sessions.onChecked((device, owner) => {
      if (owner instanceof Child) owner.gateway.checkChild(owner);
      else this.#byDevice.get(device.number)?.checkChildren();
    });
    metrics.observed('gateway_sessions', 'Connected gateways that used a topic of gateways.', () => this.#open.size);
    metrics.observed('gateway_child_sessions', 'Devices that are connected through a gateway.', () => {
      let children = 0;
      for (const gateway of this.#open) children += gateway.size;
      return children;
    });
    metrics.observed('gateway_held_bytes', 'Messages that wait for their devices.', () => this.#held.held);
  }

  /** Opens a gateway, which the caller ends with `close`. */
  open(device: CachedDevice, link: GatewayLink): Gateway {
    const gateway = new Gateway(this.#deps, device, link);
    this.#open.add(gateway);
    this.#byDevice.set(device.number, gateway);
    return gateway;
  }

  close(gateway: Gateway): void {
    assert(this.#open.delete(gateway), 'a gateway is closed once', gateway);
    if (this.#byDevice.get(gateway.device.number) === gateway) this.#byDevice.delete(gateway.device.number);
    gateway.end();
  }

  /**
   * Keeps a message that must wait, until the caller calls the returned function. Throws when too many messages wait.
   */
  hold({ number, tenantId }: Pick<CachedDevice, 'number' | 'tenantId'>, bytes: number): () => void {
    const owners = [
      { name: `gateway ${number}`, bytesMax: limits.gatewayHeldBytesPerGatewayMax },
      { name: tenantId, bytesMax: limits.gatewayHeldBytesPerTenantMax },
    ];
    if (this.#held.lacking(bytes, owners)) throw shareHeld;
    if (!this.#held.take(bytes, owners)) throw tooMuch;
    return () => this.#held.release(bytes, owners);
  }

  /** Keeps the bytes of a message until the caller calls `release`. A message that is owned has its room already. */
  keep(
    { payload, isOwned }: { payload: Buffer; isOwned: boolean },
    gateway: Pick<CachedDevice, 'number' | 'tenantId'>,
  ): { payload: Buffer; release: () => void } {
    if (isOwned) return { payload, release: () => {} };
    const release = this.hold(gateway, payload.length);
    return { payload: Buffer.from(payload), release };
  }
}

const shareHeld = new Fault(
  'gateway_held_share',
  'Too many messages of this gateway or tenant wait for devices to be looked up: send them again more slowly.',
  1,
);

const tooMuch = unavailable('gateway_held', 'Too many messages wait for devices to be looked up; send again.');
