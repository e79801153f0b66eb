/** Mutations of bytes that `fuzz/mqtt-streams.ts` and `fuzz/http-streams.ts` share. All are derived from a seed. */
import type { Random } from '../test/harness/random.ts';

/** A stream as the packets or requests that it consists of. */
export type Mutation = (random: Random, parts: Buffer[]) => Buffer[];

/** Changes one part; the others keep their bytes. */
export function changed(random: Random, parts: Buffer[], change: (part: Buffer) => Buffer): Buffer[] {
  const at = random.below(parts.length);
  return parts.map((part, n) => (n === at ? change(Buffer.from(part)) : part));
}

export const byteMutations: Mutation[] = [
  // Bits.
  (random, parts) =>
    changed(random, parts, (part) => {
      for (let n = 1 + random.below(4); n > 0 && part.length > 0; n -= 1) {
        part[random.below(part.length)]! ^= 1 << random.below(8);
      }
      return part;
    }),
  // A part cut short.
  (random, parts) => changed(random, parts, (part) => part.subarray(0, random.below(part.length))),
  // Two halves of two parts.
  (random, parts) =>
    changed(random, parts, (part) => {
      const other = random.pick(parts);
      return Buffer.concat([part.subarray(0, random.below(part.length)), other.subarray(random.below(other.length))]);
    }),
  // Random bytes in between.
  (random, parts) =>
    changed(random, parts, (part) => {
      const at = random.below(part.length);
      const noise = Buffer.from(Array.from({ length: 1 + random.below(40) }, () => random.below(256)));
      return Buffer.concat([part.subarray(0, at), noise, part.subarray(at)]);
    }),
  // Any order, any of them left out or twice.
  (random, parts) => parts.map(() => random.pick(parts)),
];

/** None to three mutations: healthy streams must live beside broken ones. */
export function mutate(random: Random, parts: Buffer[], mutations: Mutation[]): Buffer {
  let mutated = parts;
  for (let n = random.below(4); n > 0; n -= 1) mutated = random.pick(mutations)(random, mutated);
  const bytes = Buffer.concat(mutated);
  return bytes.length > 0 ? bytes : Buffer.from([random.below(256)]);
}
