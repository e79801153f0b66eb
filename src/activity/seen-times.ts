/**
 * The activity of devices as one worker knows it: the time of the last message of each device, and which devices are
 * stored as active. A page has the blocks of consecutive devices side by side, so that a message of any device of a
 * large fleet touches one time and one mark. A block of 512 devices takes 9 bytes a device from its first activity
 * until no block of its page had any for `activityIdleTurnsMax` turns, usually one and a half hours.
 */
import { blockDevices, blockOf, placeOf } from './blocks.ts';

/** The mark of a device of which this worker does not know that it is stored as active. */
const unknown = 0;
/** A round writes, or has written, the device as active; the mark stays. */
const listed = 1;
/** The device was read as active, and need not be written. */
const stored = 2;

const pageBlocks = 64;
const pageDevices = pageBlocks * blockDevices;

/** The times and marks of some consecutive blocks. The system gives memory to a block when it is first written to. */
class SeenPage {
  readonly page: number;
  /** Epoch milliseconds; 0 = nothing was received here. */
  readonly times = new Float64Array(pageDevices);
  /** `unknown`, `listed` or `stored`, for each device. */
  readonly active = new Uint8Array(pageDevices);
  /** For each block: the time of the first activity that is not in the store; 0 = all activity is. */
  readonly unwrittenSince = new Float64Array(pageBlocks);
  readonly blocks = new Array<SeenBlock | undefined>(pageBlocks).fill(undefined);

  constructor(page: number) {
    this.page = page;
  }
}

/** A block of a page: views of its times and marks. */
export class SeenBlock {
  readonly block: number;
  readonly times: Float64Array;
  readonly active: Uint8Array;
  /** The number of turns since the last activity. */
  idleTurns = 0;
  readonly #page: SeenPage;
  readonly #place: number;

  constructor(page: SeenPage, place: number) {
    this.block = page.page * pageBlocks + place;
    this.times = page.times.subarray(place * blockDevices, (place + 1) * blockDevices);
    this.active = page.active.subarray(place * blockDevices, (place + 1) * blockDevices);
    this.#page = page;
    this.#place = place;
  }

  /** The time of the first activity that is not in the store; 0 = all activity is. */
  get unwrittenSince(): number {
    return this.#page.unwrittenSince[this.#place]!;
  }

  set unwrittenSince(time: number) {
    this.#page.unwrittenSince[this.#place] = time;
  }
}

export class SeenTimes {
  readonly #pages = new Map<number, SeenPage>();
  #woken: number[] = [];
  /** The place of the first woken device that is not taken. */
  #nextWoken = 0;

  get blocks(): Iterable<SeenBlock> {
    return this.#eachBlock();
  }

  /** Notes an activity. A device that is not known as active is listed as woken, once. */
  note(device: number, now: number): void {
    const number = Math.floor(device / pageDevices);
    const page = this.#pages.get(number) ?? this.#addPage(number);
    const place = device - number * pageDevices;
    page.times[place] = now;
    const block = Math.floor(place / blockDevices);
    if (page.unwrittenSince[block] === 0) {
      page.unwrittenSince[block] = now;
      page.blocks[block] ??= new SeenBlock(page, block);
    }
    if (page.active[place] !== unknown) return;
    page.active[place] = listed;
    this.#woken.push(device);
  }

  /** Notes devices that are stored as active. */
  learnActive(devices: Iterable<number>): void {
    for (const device of devices) this.#addBlock(blockOf(device)).active[placeOf(device)] = stored;
  }

  /** Returns the time of the last activity; 0 = this worker received nothing from the device. */
  timeOf(device: number): number {
    return this.#block(blockOf(device))?.times[placeOf(device)] ?? 0;
  }

  /** The number of devices that are listed as woken. */
  get woken(): number {
    return this.#woken.length - this.#nextWoken;
  }

  /** Takes the first `count` woken devices. Returns those that are not stored as active by now. */
  takeWoken(count: number): number[] {
    const taken = this.#woken.slice(this.#nextWoken, this.#nextWoken + count);
    this.#nextWoken += taken.length;
    if (this.woken === 0) {
      this.#woken = [];
      this.#nextWoken = 0;
    }
    return taken.filter((device) => this.#block(blockOf(device))?.active[placeOf(device)] !== stored);
  }

  /** Lists devices again that were taken and could not be written as active. */
  keepWoken(devices: number[]): void {
    if (devices.length > this.#nextWoken) {
      this.#woken = [...devices, ...this.#woken.slice(this.#nextWoken)];
      this.#nextWoken = 0;
      return;
    }
    this.#nextWoken -= devices.length;
    for (const [n, device] of devices.entries()) this.#woken[this.#nextWoken + n] = device;
  }

  /** Notes devices that became inactive. A device that sent after `judgedTime` is listed as woken again. */
  ended(devices: number[], judgedTime: number): void {
    for (const device of devices) {
      const block = this.#block(blockOf(device));
      const place = placeOf(device);
      if (block === undefined || block.active[place] === unknown) continue;
      if (block.times[place]! > judgedTime) this.#list(block, place);
      else block.active[place] = unknown;
    }
  }

  /** Forgets which devices are active. Devices that sent after `since` are listed as woken again. */
  forgetActive(since: number): void {
    for (const block of this.#eachBlock()) {
      for (let place = 0; place < blockDevices; place += 1) {
        if (block.active[place] === unknown) continue;
        if (block.times[place]! >= since) this.#list(block, place);
        else block.active[place] = unknown;
      }
    }
  }

  /** Forgets what is stored: all that was received here is written again. */
  forgetStored(): void {
    for (const block of this.#eachBlock()) {
      let since = block.unwrittenSince || Number.POSITIVE_INFINITY;
      for (const time of block.times) if (time > 0 && time < since) since = time;
      if (since !== Number.POSITIVE_INFINITY) block.unwrittenSince = since;
    }
  }

  /** Returns the blocks whose turn, one of `turns`, has come; removes blocks without activity for `idleTurnsMax`. */
  takeDue(turn: number, turns: number, idleTurnsMax: number): SeenBlock[] {
    const due: SeenBlock[] = [];
    for (const block of this.#eachBlock()) {
      if (block.block % turns !== turn) continue;
      if (block.unwrittenSince > 0) {
        block.idleTurns = 0;
        due.push(block);
      } else if ((block.idleTurns += 1) > idleTurnsMax) {
        this.#remove(block);
      }
    }
    return due;
  }

  /** Limits all times to `now`, after the clock was set back. */
  clamp(now: number): void {
    for (const block of this.#eachBlock()) {
      if (block.unwrittenSince > now) block.unwrittenSince = now;
      for (let place = 0; place < blockDevices; place += 1) {
        if (block.times[place]! > now) block.times[place] = now;
      }
    }
  }

  /** Returns the time before which all that was received is stored; `now` when nothing waits. */
  settledTime(now: number): number {
    let settled = now;
    for (const { unwrittenSince } of this.#pages.values()) {
      for (const since of unwrittenSince) if (since > 0 && since < settled) settled = since;
    }
    return settled;
  }

  /** Lists a device as woken. A device may be listed twice, because its marks are merged. */
  #list(block: SeenBlock, place: number): void {
    block.active[place] = listed;
    this.#woken.push(block.block * blockDevices + place);
  }

  *#eachBlock(): Generator<SeenBlock> {
    for (const { blocks } of this.#pages.values()) for (const block of blocks) if (block !== undefined) yield block;
  }

  #block(number: number): SeenBlock | undefined {
    return this.#pages.get(Math.floor(number / pageBlocks))?.blocks[number % pageBlocks];
  }

  #addBlock(number: number): SeenBlock {
    const pageNumber = Math.floor(number / pageBlocks);
    const page = this.#pages.get(pageNumber) ?? this.#addPage(pageNumber);
    const place = number % pageBlocks;
    page.blocks[place] ??= new SeenBlock(page, place);
    return page.blocks[place];
  }

  #addPage(number: number): SeenPage {
    const page = new SeenPage(number);
    this.#pages.set(number, page);
    return page;
  }

  #remove({ block: number, times, active }: SeenBlock): void {
    const pageNumber = Math.floor(number / pageBlocks);
    const { blocks } = this.#pages.get(pageNumber)!;
    times.fill(0);
    active.fill(unknown);
    blocks[number % pageBlocks] = undefined;
    if (blocks.every((block) => block === undefined)) this.#pages.delete(pageNumber);
  }
}
