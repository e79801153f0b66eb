/**
 * One record of telemetry inside a buffer that is sent again and again: between two sends only the digits of its `ts`
 * and of two values change in place, so that no (device, ts) comes twice and nothing is built while measuring.
 */
const tsDigits = 13;
const zero = 0x30;
const nine = 0x39;

/** Four keys as a weather sensor has them: 2 doubles that wander, one that hardly moves, one whole number. */
export const recordPoints = 4;
/** With the four keys and those of `recordKeys` that follow. */
export const recordPointsMax = 10;

/** The keys of a record of so many points: beyond the first four, doubles that wander. */
export function recordKeys(points: number): string[] {
  const further = Array.from({ length: points - recordPoints }, (_, n) => `level-${n}`);
  return ['temperature', 'humidity', 'pressure', 'battery', ...further];
}

export function recordText(ts: number, points = recordPoints): string {
  const further = recordKeys(points).slice(recordPoints);
  const levels = further.map((key) => `,"${key}":61.70`).join('');
  return `{"ts":${ts},"values":{"temperature":21.50,"humidity":48.20,"pressure":1013.25,"battery":87${levels}}}`;
}

/**
 * Returns the places of the digits that wander, counted from the first digit of `ts` at `tsAt`: those between `from`
 * and `until`, without them those of a record as JSON.
 */
export function wanderingDigits(bytes: Buffer, tsAt: number, from = tsAt, until = bytes.indexOf('}', tsAt)): number[] {
  return [...bytes.toString('latin1', from, until).matchAll(/(?:21\.50|48\.20|61\.70)(?!\d)/g)].map(
    ({ index }) => from - tsAt + index + 3,
  );
}

export class MovingRecord {
  readonly #bytes: Buffer;
  readonly #tsEnd: number;
  readonly #stepMs: number;
  readonly #digits: readonly number[];
  /** State of the walk; differs per device so that series are not copies of each other. */
  #walk: number;

  /** `tsAt`: the first digit of `ts`. `digits`: `wanderingDigits`, one list for all records of one form. */
  constructor(bytes: Buffer, tsAt: number, stepMs: number, seed: number, digits: readonly number[]) {
    this.#bytes = bytes;
    this.#tsEnd = tsAt + tsDigits - 1;
    this.#stepMs = stepMs;
    this.#digits = digits;
    this.#walk = seed | 1;
  }

  get ts(): number {
    return Number(this.#bytes.toString('latin1', this.#tsEnd - tsDigits + 1, this.#tsEnd + 1));
  }

  move(): void {
    this.#addToTs(this.#stepMs);
    this.#wanderAll();
  }

  /** As `move`, to this `ts`. */
  moveTo(ts: number): void {
    let rest = ts;
    for (let at = this.#tsEnd; at > this.#tsEnd - tsDigits; at -= 1) {
      this.#bytes[at] = zero + (rest % 10);
      rest = Math.floor(rest / 10);
    }
    this.#wanderAll();
  }

  #wanderAll(): void {
    this.#walk = (Math.imul(this.#walk, 1664525) + 1013904223) | 0;
    const tsAt = this.#tsEnd - tsDigits + 1;
    let random = this.#walk >>> 16;
    for (const digit of this.#digits) {
      this.#wander(tsAt + digit, random & 3);
      random >>>= 2;
    }
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
