/** The index of spelled names against a Map, over random operations. */
import { expect, it } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { hashOf } from '../telemetry/keys.ts';
import { SpelledNames } from './spelled-names.ts';

interface Named {
  name: string;
  place: number;
}

function find(names: SpelledNames<Named>, spelling: string): Named | undefined {
  const body = Buffer.from(`{"${spelling}":`);
  return names.find(body, 2, body.length - 2, hashOf(body.subarray(2, body.length - 2)));
}

it('answers as a Map does, over random operations; few spellings have no room', () => {
  for (let seed = 1; seed <= 3; seed += 1) {
    const random = new Random(seed);
    const names = new SpelledNames<Named>();
    const children = Array.from({ length: 2_000 }, (_, n): Named => ({ name: `${n}`, place: 0 }));
    const spelled = new Map<string, Named>();
    const texts = new Map<Named, string>();
    const spelling = ({ name }: Named) => random.pick(['', 'Größe ', '量'.repeat(200)]) + name;
    for (let step = 0; step < 9_000; step += 1) {
      const child = random.pick(children);
      spelled.delete(texts.get(child) ?? '');
      if (random.below(3) > 0) {
        const text = spelling(child);
        names.set(child, Buffer.from(text));
        spelled.set(text, child);
        texts.set(child, text);
      } else {
        names.delete(child);
      }
      if (step % 3_000 !== 2_999) continue;
      let kept = 0;
      for (const { name } of children) {
        for (const text of [name, `Größe ${name}`, `${'量'.repeat(200)}${name}`]) {
          const found = find(names, text);
          if (found === undefined) continue;
          expect(found).toBe(spelled.get(text));
          kept += 1;
        }
      }
      expect(kept).toBeGreaterThan(spelled.size * 0.96);
      expect(kept).toBeLessThanOrEqual(spelled.size);
    }
    names.clear();
    expect(children.every(({ place, name }) => place === 0 && find(names, name) === undefined)).toBe(true);
  }
});

it('recognizes a spelling with its closing quote', () => {
  const names = new SpelledNames<Named>();
  const [one, other] = ['pump', 'pump 2'].map((name): Named => ({ name, place: 0 }));
  const endOf = (child: Named, text: string, last = text.length) => names.endOf(child, Buffer.from(text), 1, last);
  expect(endOf(one!, '"pump"')).toBe(-1);
  names.set(one!, Buffer.from('pump'));
  names.set(other!, Buffer.from('pump 2'));
  expect([endOf(one!, '"pump":'), endOf(other!, '"pump 2":'), endOf(one!, '"pump 2":')]).toEqual([5, 7, -1]);
  expect([endOf(one!, '"pumq":'), endOf(one!, '"pump'), endOf(one!, '"pump":', 4)]).toEqual([-1, -1, -1]);
});
