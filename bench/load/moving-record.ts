/**
 * One record of telemetry inside a buffer that is sent again and again: between two sends only the digits of its `ts`
 * and of two values change in place, so that no (device, ts) comes twice and nothing is built while measuring.
 */
const tsDigits = 13;
const zero = 0x30;
const nine = 0x39;

/** Four keys as a weather sensor has them: 2 doubles that wander, one that hardly moves, one whole number. */
export const recordPoints = 4;

export function recordText(ts: number): string {
  return `{"ts":${ts},"values":{"temperature":21.50,"humidity":48.20,"pressure":1013.25,"battery":87}}`;
}

export class MovingRecord {
  readonly #bytes: Buffer;
  readonly #tsEnd: number;
  readonly #stepMs: number;
  readonly #temperatureAt: number;
  readonly #humidityAt: number;
  /** State of the walk; differs per device so that series are not copies of each other. */
  #walk: number;

  /** `tsAt`: the first digit of the first `ts`; the values follow it. */
  constructor(bytes: Buffer, tsAt: number, stepMs: number, seed: number) {
    this.#bytes = bytes;
    this.#tsEnd = tsAt + tsDigits - 1;
    this.#stepMs = stepMs;
    this.#temperatureAt = bytes.indexOf('21.50', tsAt);
    this.#humidityAt = bytes.indexOf('48.20', tsAt);
    this.#walk = seed | 1;
  }

  get ts(): number {
    return Number(this.#bytes.toString('latin1', this.#tsEnd - tsDigits + 1, this.#tsEnd + 1));
  }

  move(): void {
    this.#addToTs(this.#stepMs);
    this.#walk = (Math.imul(this.#walk, 1664525) + 1013904223) | 0;
    const random = this.#walk >>> 16;
    this.#wander(this.#temperatureAt + 3, random & 3);
    this.#wander(this.#humidityAt + 3, (random >> 2) & 3);
  }

  /** Decimal addition on the digits in place. */
  #addToTs(milliseconds: number): void {
    const bytes = this.#bytes;
    let carry = milliseconds;
    for (let at = this.#tsEnd; carry > 0; at -= 1) {
      const sum = bytes[at]! - zero + carry;
      bytes[at] = zero + (sum % 10);
      carry = Math.floor(sum / 10);
    }
  }

  /** Moves a digit by -1, 0 or +1 and keeps it a digit. */
  #wander(at: number, draw: number): void {
    const bytes = this.#bytes;
    if (draw === 0 && bytes[at]! > zero) bytes[at]! -= 1;
    else if (draw === 1 && bytes[at]! < nine) bytes[at]! += 1;
  }
}
