/**
 * What one worker knows of the activity of devices: when it received from each, and which ones are stored as active. Takes
 * 9 bytes for each device of a block that was seen in the last hour, also for those that are unknown here.
 */
import { blockDevices, blockOf, placeOf } from './blocks.ts';

/** Nothing says that the device is stored as active. */
const unknown = 0;
/** The device is written as active with the next round, unless it is. */
const listed = 1;
/** The device is stored as active. */
const stored = 2;

export class SeenBlock {
  readonly block: number;
  /** Epoch milliseconds; 0 = nothing was received here. */
  readonly times = new Float64Array(blockDevices);
  /** `unknown`, `listed` or `stored`, for each device. */
  readonly active = new Uint8Array(blockDevices);
  /** The first activity that is not in the store; 0 = all is. */
  unwrittenSince = 0;
  /** Turns since the last activity. */
  idleTurns = 0;

  constructor(block: number) {
    this.block = block;
  }
}

export class SeenTimes {
  readonly #blocks = new Map<number, SeenBlock>();
  /** The block of the device before: messages of gateways name neighbours. */
  #last = new SeenBlock(-1);
  #woken: number[] = [];

  get blocks(): Iterable<SeenBlock> {
    return this.#blocks.values();
  }

  /** A device that is not known as active is listed as woken, once. */
  note(device: number, now: number): void {
    const block = this.#blockOf(device);
    const place = placeOf(device);
    block.times[place] = now;
    if (block.unwrittenSince === 0) block.unwrittenSince = now;
    if (block.active[place] !== unknown) return;
    block.active[place] = listed;
    this.#woken.push(device);
  }

  /** Devices that are stored as active. */
  learnActive(devices: Iterable<number>): void {
    for (const device of devices) this.#blockOf(device).active[placeOf(device)] = stored;
  }

  /** 0 = nothing was received here. */
  timeOf(device: number): number {
    return this.#blocks.get(blockOf(device))?.times[placeOf(device)] ?? 0;
  }

  takeWoken(): number[] {
    const woken = this.#woken;
    this.#woken = [];
    return woken.filter((device) => this.#blockOf(device).active[placeOf(device)] !== stored);
  }

  /** Devices that could not be written as active. */
  keepWoken(devices: number[]): void {
    this.#woken = [...devices, ...this.#woken];
  }

  /** Devices became inactive, because they were silent up to `judgedTime`. One that was not since then wakes again. */
  ended(devices: number[], judgedTime: number): void {
    for (const device of devices) {
      const block = this.#blocks.get(blockOf(device));
      const place = placeOf(device);
      if (block === undefined || block.active[place] === unknown) continue;
      if (block.times[place]! > judgedTime) this.#list(block, place);
      else block.active[place] = unknown;
    }
  }

  /** Which devices are active may have changed unseen: those that were received from since then ask the store again. */
  forgetActive(since: number): void {
    for (const block of this.#blocks.values()) {
      for (let place = 0; place < blockDevices; place += 1) {
        if (block.active[place] === unknown) continue;
        if (block.times[place]! >= since) this.#list(block, place);
        else block.active[place] = unknown;
      }
    }
  }

  /** Blocks whose turn it is, of `turns`; those of an hour ago are forgotten. */
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

  /** After the clock went back: no time lies in the future. */
  clamp(now: number): void {
    for (const block of this.#blocks.values()) {
      for (let place = 0; place < blockDevices; place += 1) {
        if (block.times[place]! > now) block.times[place] = now;
      }
    }
  }

  /** All that was received before this time is stored; `now` when nothing waits. */
  settledTime(now: number): number {
    let settled = now;
    for (const { unwrittenSince } of this.#blocks.values()) {
      if (unwrittenSince > 0 && unwrittenSince < settled) settled = unwrittenSince;
    }
    return settled;
  }

  /** A device may be listed twice: its marks are gathered. */
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
