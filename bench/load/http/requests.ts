/**
 * The requests of the HTTP benchmarks as bytes: one buffer for each device, made once; between two sends only digits
 * change in place. Every (device, ts) is sent once in the life of a `DeviceRequest`.
 */
import { MovingRecord, recordText } from '../moving-record.ts';

/** The kind of message: the path after the token, and its body. */
export type MessageKind = 'telemetry' | 'attributes';
const bodies: Record<MessageKind, (ts: number) => string> = {
  telemetry: recordText,
  // Four keys; `sequence` identifies the last post of a device.
  attributes: (ts) => `{"sequence":${ts},"temperature":21.50,"humidity":48.20,"mode":"auto"}`,
};

export class DeviceRequest {
  readonly bytes: Buffer;
  readonly #record: MovingRecord;
  #sent = 0;

  constructor(token: string, firstTs: number, stepMs: number, seed: number, kind: MessageKind = 'telemetry') {
    const body = bodies[kind](firstTs - stepMs);
    const head =
      `POST /api/v1/${token}/${kind} HTTP/1.1\r\nHost: localhost\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
    this.bytes = Buffer.from(head + body);
    this.#record = new MovingRecord(this.bytes, head.length + body.indexOf(':') + 1, stepMs, seed);
  }

  get sent(): number {
    return this.#sent;
  }

  /** The ts of the last message. */
  get ts(): number {
    return this.#record.ts;
  }

  /** The bytes of the next message; valid until the following call, which must wait for its answer. */
  next(): Buffer {
    this.#record.move();
    this.#sent += 1;
    return this.bytes;
  }
}
