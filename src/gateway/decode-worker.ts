/**
 * The thread of `decode-thread.ts`: decodes a large message of a gateway. A child is known here by its place in the
 * list of names that the message uses; the main thread connects the children and replaces places by devices.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { assert, Fault, notFound } from '../base/errors.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { DecodeOptions } from '../telemetry/decode-options.ts';
import { buffersOf, chunksOf, type DecodedChunk } from '../telemetry/decoded-chunk.ts';
import type { Key } from '../telemetry/keys.ts';
import { type PlainDecodeFault, plainFault } from '../telemetry/plain-fault.ts';
import { Rows } from '../telemetry/rows.ts';
import type { NamedChild, NamedChildren } from './named-children.ts';
import { SpelledNames } from './spelled-names.ts';
import { GatewayDecoder, GatewayTelemetry } from './telemetry.ts';

export interface GatewayDecodeRequest {
  body: Uint8Array;
  now: number;
  /** Children whose records are left out. */
  without: string[];
  /** True: the keys of each child are returned. */
  hasKeyLimit: boolean;
}

export interface DecodedByName {
  /** `spans.device` is the place of the child in `names`. */
  chunks: DecodedChunk[];
  names: string[];
  /** Data points of each child. */
  points: number[];
  /** Distinct keys of each child; none when they were not asked for. */
  keys: Uint8Array[][];
  /** Children with a fault of their own. */
  refused: [name: string, fault: PlainDecodeFault][];
}

export type GatewayDecodeReply = DecodedByName | { fault: PlainDecodeFault };

/** Every name of the message is a child, except the names that are left out. */
class NamesOfMessage implements NamedChildren {
  readonly device = deviceOf(-1);
  readonly spelled = new SpelledNames<NamedChild>();
  readonly #byName = new Map<string, NamedChild>();
  readonly #without: ReadonlyMap<string, Fault>;

  constructor(without: ReadonlyMap<string, Fault>) {
    this.#without = without;
  }

  recordRefusals(): void {}

  get names(): string[] {
    return [...this.#byName.keys()];
  }

  child(name: string): NamedChild | undefined {
    const known = this.#byName.get(name);
    if (known !== undefined || this.#without.has(name)) return known;
    const device = deviceOf(this.#byName.size);
    const child: NamedChild = {
      number: device.number,
      device,
      name,
      isCurrent: true,
      place: 0,
      charged: 0,
      refusal: undefined,
      noteRefused() {},
    };
    this.#byName.set(name, child);
    return child;
  }
}

/** The decoder uses nothing of a device but its number. */
function deviceOf(number: number): CachedDevice {
  return { number } as CachedDevice;
}

const leftOut = notFound('The child is left out.');
const neverAnswered = { acknowledge() {}, refuse() {} };
const options = workerData as DecodeOptions;
const decoder = new GatewayDecoder({ options, touch() {}, admission: undefined });

function decode({ body, now, without, hasKeyLimit }: GatewayDecodeRequest): GatewayDecodeReply {
  const refused = new Map(without.map((name) => [name, leftOut]));
  const children = new NamesOfMessage(refused);
  const message = new GatewayTelemetry(children, neverAnswered);
  message.refused = refused;
  // The rows are not reused, because the thread would keep the memory of a large message.
  const rows = new Rows();
  try {
    decoder.decode(body, message, now, rows);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return { fault: plainFault(error) };
  }
  const { names } = children;
  return {
    chunks: chunksOf(rows, options.chunkBytesMax),
    names,
    points: pointsOf(rows, names.length),
    keys: hasKeyLimit ? keysOf(rows, names.length) : names.map(() => []),
    refused: [...(message.refusals ?? [])]
      .filter(([, fault]) => fault !== leftOut)
      .map(([name, f]) => [name, plainFault(f)]),
  };
}

function pointsOf(rows: Rows, names: number): number[] {
  const points = new Array<number>(names).fill(0);
  const { count, end, device } = rows.spans();
  for (let i = 0; i < count; i += 1) points[device[i]!]! += end[i]! - (end[i - 1] ?? 0);
  return points;
}

/** Copies the distinct keys of each child: a view would take all memory around the key along. */
function keysOf(rows: Rows, names: number): Uint8Array[][] {
  const keys = Array.from({ length: names }, () => new Set<Key>());
  const { count, end, device } = rows.spans();
  for (let i = 0; i < count; i += 1) {
    for (let row = end[i - 1] ?? 0; row < end[i]!; row += 1) keys[device[i]!]!.add(rows.keyAt(row));
  }
  return keys.map((ofChild) => [...ofChild].map(({ bytes }) => Uint8Array.from(bytes)));
}

assert(parentPort, 'decode-worker.ts runs as a thread');
const port = parentPort;
port.on('message', (request: GatewayDecodeRequest) => {
  const reply = decode(request);
  port.postMessage(reply, 'chunks' in reply ? reply.chunks.flatMap(buffersOf) : []);
});
