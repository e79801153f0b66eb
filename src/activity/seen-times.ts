/**
 * The activity of devices as one worker knows it: the time of the last message of each device, and which devices are
 * stored as active. A block of 512 devices takes 9 bytes a device, while any of them sent in the last hour.
 */
import { blockDevices, blockOf, placeOf } from './blocks.ts';

/** This worker does not know that the device is stored as active. */
const unknown = 0;
/** The next round writes the device as active, unless the device is stored as active by then. */
const listed = 1;
/** The device is stored as active. */
const stored = 2;

export class SeenBlock {
  readonly block: number;
  /** Epoch milliseconds; 0 = nothing was received here. */
  readonly times = new Float64Array(blockDevices);
  /** `unknown`, `listed` or `stored`, for each device. */
  readonly active = new Uint8Array(blockDevices);
  /** The time of the first activity that is not in the store; 0 = all activity is. */
  unwrittenSince = 0;
  /** The number of turns since the last activity. */
  idleTurns = 0;

  constructor(block: number) {
    this.block = block;
  }
}

export class SeenTimes {
  readonly #blocks = new Map<number, SeenBlock>();
  /** The block of the previous device, because the children of a gateway often share a block. */
  #last = new SeenBlock(-1);
  #woken: number[] = [];

  get blocks(): Iterable<SeenBlock> {
    return this.#blocks.values();
  }

  /** Notes an activity. A device that is not known as active is listed as woken, once. */
  note(device: number, now: number): void {
    const block = this.#blockOf(device);
    const place = placeOf(device);
    block.times[place] = now;
    if (block.unwrittenSince === 0) block.unwrittenSince = now;
    if (block.active[place] !== unknown) return;
    block.active[place] = listed;
    this.#woken.push(device);
  }

  /** Notes devices that are stored as active. */
  learnActive(devices: Iterable<number>): void {
    for (const device of devices) this.#blockOf(device).active[placeOf(device)] = stored;
  }

  /** Returns the time of the last activity; 0 = this worker received nothing from the device. */
  timeOf(device: number): number {
    return this.#blocks.get(blockOf(device))?.times[placeOf(device)] ?? 0;
  }

  takeWoken(): number[] {
    const woken = this.#woken;
    this.#woken = [];
    return woken.filter((device) => this.#blockOf(device).active[placeOf(device)] !== stored);
  }

  /** Lists devices again that could not be written as active. */
  keepWoken(devices: number[]): void {
    this.#woken = [...devices, ...this.#woken];
  }

  /** Notes devices that became inactive. A device that sent after `judgedTime` is listed as woken again. */
  ended(devices: number[], judgedTime: number): void {
    for (const device of devices) {
      const block = this.#blocks.get(blockOf(device));
      const place = placeOf(device);
      if (block === undefined || block.active[place] === unknown) continue;
      if (block.times[place]! > judgedTime) this.#list(block, place);
      else block.active[place] = unknown;
    }
  }

  /** Forgets which devices are active. Devices that sent after `since` are listed as woken again. */
  forgetActive(since: number): void {
    for (const block of this.#blocks.values()) {
      for (let place = 0; place < blockDevices; place += 1) {
        if (block.active[place] === unknown) continue;
        if (block.times[place]! >= since) this.#list(block, place);
        else block.active[place] = unknown;
      }
    }
  }

  /** Returns the blocks whose turn, one of `turns`, has come; removes blocks without activity for `idleTurnsMax`. */
  takeDue(turn: number, turns: number, idleTurnsMax: number): SeenBlock[] {
    const due: SeenBlock[] = [];
    for (const block of this.#blocks.values()) {
      if (block.block % turns !== turn) continue;
      if (block.unwrittenSince > 0) {
        block.idleTurns = 0;
        due.push(block);
      } else if ((block.idleTurns += 1) > idleTurnsMax) {
        this.#blocks.delete(block.block);
        this.#last = new SeenBlock(-1);
      }
    }
    return due;
  }

  /** Limits all times to `now`, after the clock was set back. */
  clamp(now: number): void {
    for (const block of this.#blocks.values()) {
      for (let place = 0; place < blockDevices; place += 1) {
        if (block.times[place]! > now) block.times[place] = now;
      }
    }
  }

  /** Returns the time before which all that was received is stored; `now` when nothing waits. */
  settledTime(now: number): number {
    let settled = now;
    for (const { unwrittenSince } of this.#blocks.values()) {
      if (unwrittenSince > 0 && unwrittenSince < settled) settled = unwrittenSince;
    }
    return settled;
  }

  /** Lists a device as woken. A device may be listed twice, because its marks are merged. */
  #list(block: SeenBlock, place: number): void {
    block.active[place] = listed;
    this.#woken.push(block.block * blockDevices + place);
  }

  #blockOf(device: number): SeenBlock {
    const number = blockOf(device);
    if (this.#last.block === number) return this.#last;
    let block = this.#blocks.get(number);
    if (block === undefined) {
      block = new SeenBlock(number);
      this.#blocks.set(number, block);
    }
    this.#last = block;
    return block;
  }
}
