/**
 * Attributes of many devices in the form in which they leave a thread: a few long lists, because an object for each
 * value would take the receiver longer than the decoding took.
 */
import { Fault, faultOrThrow } from '../base/errors.ts';
import { type PlainDecodeFault, plainFault } from '../telemetry/plain-fault.ts';
import type { Json } from '../value/json.ts';
import { Kind, type TypedValue } from '../value/typed.ts';
import { attributesOf } from './decode.ts';

export interface PackedAttributes {
  /** The name of each device, and how many attributes it has. */
  names: string[];
  counts: number[];
  keys: string[];
  kinds: Uint8Array;
  nums: Float64Array;
  /** The digits of an integer or boolean, or the text; '' for doubles. */
  texts: string[];
  /** Devices whose attributes are refused. */
  refused: [name: string, fault: PlainDecodeFault][];
}

export function packAttributes(
  byName: Iterable<[string, Json | Fault]>,
  castNumericStrings: boolean,
): PackedAttributes {
  const names: string[] = [];
  const counts: number[] = [];
  const keys: string[] = [];
  const values: TypedValue[] = [];
  const refused: PackedAttributes['refused'] = [];
  for (const [name, json] of byName) {
    try {
      if (json instanceof Fault) throw json;
      const entries = attributesOf(json, castNumericStrings);
      names.push(name);
      counts.push(entries.size);
      for (const [key, value] of entries) {
        keys.push(key);
        values.push(value);
      }
    } catch (error) {
      refused.push([name, plainFault(faultOrThrow(error))]);
    }
  }
  return {
    names,
    counts,
    keys,
    kinds: Uint8Array.from(values, ({ kind }) => kind),
    nums: Float64Array.from(values, ({ num }) => num),
    texts: values.map(({ kind, int, text }) => (isWhole(kind) ? int : text)),
    refused,
  };
}

/** Yields the attributes of each device, in the order of the message. */
export function* unpackAttributes(packed: PackedAttributes): Generator<[name: string, Map<string, TypedValue>]> {
  const { names, counts, keys, kinds, nums, texts } = packed;
  let at = 0;
  for (const [i, name] of names.entries()) {
    const entries = new Map<string, TypedValue>();
    for (const end = at + counts[i]!; at < end; at += 1) {
      const kind = kinds[at] as Kind;
      const text = texts[at]!;
      entries.set(keys[at]!, {
        kind,
        num: nums[at]!,
        ...(isWhole(kind) ? { int: text, text: '' } : { int: '0', text }),
      });
    }
    yield [name, entries];
  }
}

function isWhole(kind: Kind): boolean {
  return kind === Kind.long || kind === Kind.boolean;
}
