/**
 * The requests of the HTTP benchmarks as bytes, made once; between two sends only digits and tokens change in place.
 * Every (device, ts) is sent once.
 */
import type { DrawnDevices } from '../drawn-devices.ts';
import { MovingRecord, recordText, wanderingDigits } from '../moving-record.ts';
import type { Requests } from '../one-in-flight.ts';

/** The kind of message: the path after the token, and its body. */
export type MessageKind = 'telemetry' | 'attributes';
const bodies: Record<MessageKind, (ts: number, points: number) => string> = {
  telemetry: recordText,
  // Four keys; `sequence` identifies the last post of a device.
  attributes: (ts) => `{"sequence":${ts},"temperature":21.50,"humidity":48.20,"mode":"auto"}`,
};

/** What the requests of a run have in common. */
interface RequestForm {
  kind: MessageKind;
  hostHeader: string;
  /** Of each record of telemetry. */
  points: number;
  firstTs: number;
  /** Between two messages of a device. */
  stepMs: number;
}

function requestText(token: string, { kind, hostHeader, points }: RequestForm, ts: number) {
  const body = bodies[kind](ts, points);
  const begin = 'POST /api/v1/';
  const head =
    `${begin}${token}/${kind} HTTP/1.1\r\nHost: ${hostHeader}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
  return { text: head + body, tokenAt: begin.length, tsAt: head.length + body.indexOf(':') + 1 };
}

/** The requests of one device, in a buffer of its own. */
export class DeviceRequest implements Requests {
  readonly token: string;
  readonly bytes: Buffer;
  readonly #record: MovingRecord;
  #sent = 0;

  constructor(token: string, form: RequestForm, seed: number) {
    this.token = token;
    const { firstTs, stepMs } = form;
    const { text, tsAt } = requestText(token, form, firstTs - stepMs);
    this.bytes = Buffer.from(text);
    this.#record = new MovingRecord(this.bytes, tsAt, stepMs, seed, wanderingDigits(this.bytes, tsAt));
  }

  get sent(): number {
    return this.#sent;
  }

  /** The ts of the last message. */
  get ts(): number {
    return this.#record.ts;
  }

  next(): Buffer {
    this.#record.move();
    this.#sent += 1;
    return this.bytes;
  }
}

/** A device drawn at random for each message: a million devices take one buffer for each socket. */
export class DrawnRequests implements Requests {
  readonly #devices: DrawnDevices;
  readonly #form: RequestForm;
  readonly #bytes: Buffer;
  readonly #tokenAt: number;
  readonly #record: MovingRecord;

  /** `token`: of any device. */
  constructor(devices: DrawnDevices, token: string, form: RequestForm, seed: number) {
    const { firstTs, stepMs } = form;
    const { text, tokenAt, tsAt } = requestText(token, form, firstTs);
    this.#devices = devices;
    this.#form = form;
    this.#bytes = Buffer.from(text);
    this.#tokenAt = tokenAt;
    this.#record = new MovingRecord(this.#bytes, tsAt, stepMs, seed, wanderingDigits(this.#bytes, tsAt));
  }

  next(): Buffer {
    const { firstTs, stepMs } = this.#form;
    const sent = this.#devices.draw(this.#bytes, this.#tokenAt);
    this.#record.moveTo(firstTs + sent * stepMs);
    return this.#bytes;
  }
}
