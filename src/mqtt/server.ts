/** The MQTT door of a worker: its connections over any transport, their deadlines, and their end. */
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { beginEvent, endEvent } from '../base/running-work.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { Connection } from './connection.ts';
import type { ConnectionDeps, MqttDeps } from './deps.ts';
import { Addresses } from './flow/addresses.ts';
import { Counters } from './flow/counters.ts';
import { JournalWaiters } from './flow/journal-waiters.ts';
import { TooLargeLog } from './flow/too-large-log.ts';
import { Flusher } from './outgoing/flusher.ts';
import { packets } from './sign-in/blocked.ts';
import { endMsMax, type OpenConnection } from './transport/transport.ts';
import type { CloseReason } from './wire/close-reason.ts';

const drainStepMs = 5;
const handOverStepMs = 20;

export class Mqtt {
  readonly #connections = new Set<Connection>();
  readonly #addresses: Addresses;
  readonly #deps: ConnectionDeps;
  readonly #stopSweeps: () => void;
  #draining = false;
  #isHandingOver = false;
  #isRebalancing = false;
  #sweptAt: number;
  #addressLoggedAt = Number.NEGATIVE_INFINITY;

  constructor(deps: MqttDeps, metrics: Metrics) {
    const { connectionsPerAddressMax, packetBytesMax, inflightMax } = deps.settings;
    this.#addresses = new Addresses({
      connectionsMax: connectionsPerAddressMax,
      provisioningMax: limits.mqttProvisioningPerAddressMax,
      isTrusted: deps.isTrustedProxy,
    });
    this.#deps = {
      ...deps,
      counters: new Counters(metrics),
      flusher: new Flusher(),
      journalWaiters: new JournalWaiters(deps.clock, deps.journalRefusal),
      addresses: this.#addresses,
      tooLargeLog: new TooLargeLog(deps.clock, deps.log),
      provisioningCaps: {
        packetBytesMax: Math.min(packetBytesMax, limits.mqttProvisioningPacketBytesMax),
        inflightMax: Math.min(inflightMax, limits.mqttProvisioningInflightMax),
      },
      left: (connection) => this.#left(connection as Connection),
    };
    const { journalWaiters } = this.#deps;
    metrics.observed(
      'mqtt_connections_unread',
      'MQTT connections that are not read because the journal refuses.',
      () => journalWaiters.size,
    );
    metrics.observed(
      'mqtt_connections_without_room',
      'MQTT connections that are not read because a large packet waits for room.',
      () => deps.packetRoom.waiting,
    );
    metrics.observed(
      'mqtt_large_packet_bytes',
      'Bytes of large packets of gateways in memory.',
      () => deps.packetRoom.held,
    );
    metrics.observed('mqtt_connections', 'Open MQTT connections.', () => this.#connections.size);
    this.#sweptAt = deps.clock.monotonic();
    this.#stopSweeps = systemScheduler.every(limits.mqttSweepMs, () => this.#sweep());
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** True while this process takes no new connections. */
  get isLeaving(): boolean {
    return this.#isHandingOver || this.#draining;
  }

  /** Called for each accepted transport. */
  readonly open: OpenConnection = (transport, certificate) => {
    const connection = new Connection(this.#deps, transport, certificate);
    this.#connections.add(connection);
    const isWithinShare = this.#addresses.enter(transport.remoteAddress);
    // The transport expects its connection before any other call.
    if (this.#draining) queueMicrotask(() => connection.close('server_shutdown'));
    else if (this.#isHandingOver) queueMicrotask(() => connection.close('handed_over'));
    else if (!isWithinShare) queueMicrotask(() => this.#refuse(connection, transport.remoteAddress));
    return connection;
  };

  #refuse(connection: Connection, address: string): void {
    connection.close('address_connections');
    const { clock, log, settings } = this.#deps;
    if (clock.monotonic() - this.#addressLoggedAt < limits.mqttAddressLogMs) return;
    this.#addressLoggedAt = clock.monotonic();
    log.warn('mqtt_address_connections', { address, connectionsMax: settings.connectionsPerAddressMax() });
  }

  #left(connection: Connection): void {
    if (this.#connections.delete(connection)) this.#addresses.leave(connection.remoteAddress);
  }

  /** Called for a transport that ended before it had a connection. */
  readonly refused = (reason: CloseReason): void => this.#deps.counters.disconnected(reason);

  /**
   * Closes the connections of this process at a rate, each when what it has sent is answered. Returns when none is left
   * and the last client had time to read the last bytes, or when the drain has begun. New connections are closed at
   * once.
   */
  async handOver(perSecond: number): Promise<void> {
    this.#isHandingOver = true;
    await this.#closeAtRate(perSecond, Number.POSITIVE_INFINITY, () => this.#connections.size === 0);
    // A WebSocket counts as closed before its last bytes are sent. The end of this process would reset the connection.
    const { clock } = this.#deps;
    const readAt = clock.monotonic() + endMsMax;
    while (clock.monotonic() < readAt && !this.#draining) await systemScheduler.sleep(handOverStepMs);
  }

  /** Does the same with the oldest `count` connections, and takes new ones. Ignores a call during another. */
  async handOverSome(count: number, perSecond: number): Promise<void> {
    if (this.#isHandingOver || this.#isRebalancing) return;
    this.#isRebalancing = true;
    await this.#closeAtRate(perSecond, count, (isNoneLeft) => isNoneLeft || this.#isHandingOver);
    this.#isRebalancing = false;
  }

  /** `isOver` is called with true when `count` connections are closed, or none is left. */
  async #closeAtRate(perSecond: number, count: number, isOver: (isNoneLeft: boolean) => boolean): Promise<void> {
    const { clock } = this.#deps;
    const begun = clock.monotonic();
    const staying = this.#connections.values();
    const leaving = new Set<Connection>();
    let chosen = 0;
    let last = count;
    while (!isOver(chosen >= last && leaving.size === 0) && !this.#draining) {
      const due = Math.min(count, ((clock.monotonic() - begun) / 1000) * perSecond);
      for (; chosen < due; chosen += 1) {
        const { value: next } = staying.next();
        if (!next) {
          last = chosen;
          break;
        }
        leaving.add(next);
      }
      for (const connection of leaving) {
        if (!connection.drain('handed_over')) continue;
        connection.close('handed_over');
        leaving.delete(connection);
      }
      await systemScheduler.sleep(handOverStepMs);
    }
  }

  /**
   * Stops reading, answers what was read while there is time, then sends DISCONNECT to all connections and closes them.
   */
  async drain(msMax: number): Promise<void> {
    this.#draining = true;
    this.#stopSweeps();
    const { clock } = this.#deps;
    const deadline = clock.monotonic() + msMax;
    for (;;) {
      let waiting = 0;
      for (const connection of this.#connections) if (!connection.drain('server_shutdown')) waiting += 1;
      if (waiting === 0 || clock.monotonic() >= deadline) break;
      await systemScheduler.sleep(drainStepMs);
    }
    for (const connection of this.#connections) connection.close('server_shutdown');
    // The remaining transports send their own end.
  }

  #sweep(): void {
    const now = this.#deps.clock.monotonic();
    // A process that does not run reads nothing, so that silence does not count against clients.
    const lateMs = now - this.#sweptAt - limits.mqttSweepMs;
    this.#sweptAt = now;
    for (const connection of this.#connections) {
      beginEvent(packets, connection);
      connection.sweep(now, Math.max(0, lateMs));
    }
    endEvent();
  }
}
