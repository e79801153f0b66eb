/** The gateways that are connected to this worker, and what they share: their names' cache and the room for what waits. */
import { unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import { Child, Gateway, type GatewayDeps, type GatewayLink } from './gateway.ts';

export class Gateways {
  readonly #deps: GatewayDeps;
  readonly #open = new Set<Gateway>();
  /** By the number of its device. Of two connections of one device the newer: the older one is about to end. */
  readonly #byDevice = new Map<number, Gateway>();
  #heldBytes = 0;

  constructor(deps: GatewayDeps, metrics: Metrics) {
    this.#deps = deps;
    // What a gateway may act for, and what a child belongs to, is checked again when either of them changes.
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
    metrics.observed('gateway_held_bytes', 'Messages that wait for their devices.', () => this.#heldBytes);
  }

  /** The caller ends it with `close`. */
  open(device: CachedDevice, link: GatewayLink): Gateway {
    const gateway = new Gateway(this.#deps, device, link);
    this.#open.add(gateway);
    this.#byDevice.set(device.number, gateway);
    return gateway;
  }

  close(gateway: Gateway): void {
    this.#open.delete(gateway);
    if (this.#byDevice.get(gateway.device.number) === gateway) this.#byDevice.delete(gateway.device.number);
    gateway.end();
  }

  /** Keeps a message that must wait; throws 503 when too much waits. `release` what was held. */
  hold(bytes: number): void {
    if (this.#heldBytes + bytes > limits.gatewayHeldBytesMax) throw tooMuch;
    this.#heldBytes += bytes;
  }

  release(bytes: number): void {
    this.#heldBytes -= bytes;
  }
}

const tooMuch = unavailable('gateway_held', 'Too many messages wait for devices to be looked up; send again.');
