/**
 * The requests of the benchmarks as bytes: one buffer for each device, made once; between two sends only the digits of
 * `ts` and of the values change in place. Every (device, ts) is sent once in the life of a `DeviceRequest`.
 */
const tsDigits = 13;
const zero = 0x30;
const nine = 0x39;

/** What is sent; the path below the token, and its body. */
export type MessageKind = 'telemetry' | 'attributes';
const bodies: Record<MessageKind, (ts: number) => string> = {
  // Four keys as a weather sensor has them: 2 doubles that wander, one that hardly moves, one whole number.
  telemetry: (ts) => `{"ts":${ts},"values":{"temperature":21.50,"humidity":48.20,"pressure":1013.25,"battery":87}}`,
  // Four keys; `sequence` tells which of a device's posts is the last.
  attributes: (ts) => `{"sequence":${ts},"temperature":21.50,"humidity":48.20,"mode":"auto"}`,
};

export const pointsPerRequest = 4;

export class DeviceRequest {
  readonly bytes: Buffer;
  readonly #tsEnd: number;
  readonly #stepMs: number;
  readonly #temperatureAt: number;
  readonly #humidityAt: number;
  /** State of the walk; differs per device so that series are not copies of each other. */
  #walk: number;
  #sent = 0;

  constructor(token: string, firstTs: number, stepMs: number, seed: number, kind: MessageKind = 'telemetry') {
    const body = bodies[kind](firstTs - stepMs);
    const head =
      `POST /api/v1/${token}/${kind} HTTP/1.1\r\nHost: localhost\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
    this.bytes = Buffer.from(head + body);
    this.#stepMs = stepMs;
    this.#tsEnd = head.length + body.indexOf(':') + tsDigits;
    this.#temperatureAt = this.bytes.indexOf('21.50');
    this.#humidityAt = this.bytes.indexOf('48.20');
    this.#walk = seed | 1;
  }

  get sent(): number {
    return this.#sent;
  }

  /** Of the last message. */
  get ts(): number {
    return Number(this.bytes.toString('latin1', this.#tsEnd - tsDigits + 1, this.#tsEnd + 1));
  }

  /** The bytes of the next message; valid until the following call, which must wait for its answer. */
  next(): Buffer {
    this.#addToTs(this.#stepMs);
    this.#walk = (Math.imul(this.#walk, 1664525) + 1013904223) | 0;
    const random = this.#walk >>> 16;
    this.#wander(this.#temperatureAt + 3, random & 3);
    this.#wander(this.#humidityAt + 3, (random >> 2) & 3);
    this.#sent += 1;
    return this.bytes;
  }

  /** Decimal addition on the digits in place. */
  #addToTs(milliseconds: number): void {
    const { bytes } = this;
    let carry = milliseconds;
    for (let at = this.#tsEnd; carry > 0; at -= 1) {
      const sum = bytes[at]! - zero + carry;
      bytes[at] = zero + (sum % 10);
      carry = Math.floor(sum / 10);
    }
  }

  /** Moves a digit by -1, 0 or +1 and keeps it a digit. */
  #wander(at: number, draw: number): void {
    const { bytes } = this;
    if (draw === 0 && bytes[at]! > zero) bytes[at]! -= 1;
    else if (draw === 1 && bytes[at]! < nine) bytes[at]! += 1;
  }
}
