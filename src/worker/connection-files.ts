/**
 * Divides the files that a worker may open for connections among its doors: each door may have all that the others do
 * not use, except a few that are kept for each. Without this cap the doors together could use the files that the
 * journal and the stores need.
 */
import { limits } from '../base/limits.ts';

export class ConnectionFiles {
  readonly #max: number;
  readonly #kept: number;
  /** Connections over HTTP and HTTPS, those over WebSocket included. */
  #http: () => number = () => 0;
  /** Connections over MQTT that are not over WebSocket, and sockets that may become such connections. */
  #mqtt: () => number = () => 0;

  constructor(max: number) {
    this.#max = max;
    this.#kept = Math.min(limits.doorFilesKept, Math.ceil(max / 10));
  }

  count(http: () => number, mqtt: () => number): void {
    this.#http = http;
    this.#mqtt = mqtt;
  }

  /** The most connections that may be open over HTTP now. */
  get httpMax(): number {
    return this.#max - Math.max(this.#kept, this.#mqtt());
  }

  /** The most connections that may be open over MQTT now. */
  get mqttMax(): number {
    return this.#max - Math.max(this.#kept, this.#http());
  }

  /** True when the connection over HTTP that was accepted may stay open. */
  get hasHttp(): boolean {
    return this.#http() <= this.httpMax;
  }

  /** True while another MQTT connection may be accepted. */
  get hasMqtt(): boolean {
    return this.#mqtt() < this.mqttMax;
  }
}
