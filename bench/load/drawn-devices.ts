/**
 * Devices of which one is drawn at random for each message. The name and the count of a device lie side by side, so
 * that the generator's own cost of a message hardly grows with the fleet: a message reads one or two lines of memory.
 */

/** Bytes of the smallest cell. A cell has a name and the count of its messages. */
const cellBytesMin = 16;

export class DrawnDevices {
  readonly #count: number;
  readonly #nameBytes: number;
  readonly #cellBytes: number;
  readonly #names: Uint8Array;
  /** The same memory: the last word of each cell counts the messages of the device. */
  readonly #counts: Uint32Array;

  /** `names`: of one width, in ASCII. */
  constructor(names: readonly string[]) {
    this.#count = names.length;
    this.#nameBytes = names[0]!.length;
    if (names.some((name) => name.length !== this.#nameBytes)) throw new Error('The names have several widths.');
    let cellBytes = cellBytesMin;
    while (cellBytes < this.#nameBytes + 4) cellBytes *= 2;
    this.#cellBytes = cellBytes;
    const cells = Buffer.from(new ArrayBuffer(names.length * cellBytes));
    for (const [n, name] of names.entries()) cells.write(name, n * cellBytes, 'latin1');
    this.#names = new Uint8Array(cells.buffer);
    this.#counts = new Uint32Array(cells.buffer);
  }

  /** Writes the name of a device at `at`. Returns the number of times that the device was drawn before. */
  draw(target: Uint8Array, at: number): number {
    const names = this.#names;
    const cell = Math.floor(Math.random() * this.#count) * this.#cellBytes;
    for (let n = 0; n < this.#nameBytes; n += 1) target[at + n] = names[cell + n]!;
    const counter = (cell + this.#cellBytes) / 4 - 1;
    const before = this.#counts[counter]!;
    this.#counts[counter] = before + 1;
    return before;
  }
}
