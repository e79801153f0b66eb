/** The index of spelled names against a Map, over random operations, and what the record of a child keeps. */
import { afterEach, describe, expect, it } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { renames } from '../device/model/cached-device.ts';
import { hashOf } from '../telemetry/keys.ts';
import { SpelledNames } from './spelled-names.ts';

interface Named {
  readonly number: number;
  readonly name: string;
  isCurrent: boolean;
  place: number;
}

function named(name: string, number = 1): Named {
  return { number, name, isCurrent: true, place: 0 };
}

function find(names: SpelledNames<Named>, spelling: string): Named | undefined {
  const body = Buffer.from(`{"${spelling}":`);
  const place = names.find(body, 2, body.length - 2, hashOf(body.subarray(2, body.length - 2)));
  return place === 0 ? undefined : names.childAt(place);
}

function endOf(names: SpelledNames<Named>, place: number, text: string, last = Buffer.byteLength(text)): number {
  return names.endOf(place, Buffer.from(text), 1, last);
}

function namesOf(...children: Named[]): SpelledNames<Named> {
  const names = new SpelledNames<Named>();
  for (const child of children) names.set(child, Buffer.from(child.name));
  return names;
}

it('answers as a Map does, over random operations; few spellings have no room', () => {
  for (let seed = 1; seed <= 3; seed += 1) {
    const random = new Random(seed);
    const names = new SpelledNames<Named>();
    const children = Array.from({ length: 2_000 }, (_, n) => named(`${n}`, n));
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
        texts.delete(child);
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
      // Every spelling has its record, also one that found no room in its bucket.
      for (const [text, { place, number }] of spelled) {
        expect(endOf(names, place, `"${text}":`)).toBe(1 + Buffer.byteLength(text));
        expect(names.deviceAt(place)).toBe(number);
      }
      expect(children.filter(({ place }) => place > 0).length).toBe(spelled.size);
    }
    names.clear();
    expect(children.every(({ place, name }) => place === 0 && find(names, name) === undefined)).toBe(true);
  }
});

it('recognizes a spelling with its closing quote', () => {
  const [one, other] = [named('pump'), named('pump 2')];
  const names = namesOf(one, other);
  expect(endOf(names, 0, '"pump"')).toBe(-1);
  const ends = [endOf(names, one.place, '"pump":'), endOf(names, other.place, '"pump 2":')];
  expect([...ends, endOf(names, one.place, '"pump 2":')]).toEqual([5, 7, -1]);
  for (const [text, last] of [['"pumq":'], ['"pump'], ['"pump":', 4]] as const) {
    expect(endOf(names, one.place, text, last)).toBe(-1);
  }
});

describe('the record of a child', () => {
  const countBefore = renames.count;
  afterEach(() => {
    renames.count = countBefore;
  });

  it('has the number of the device, however large', () => {
    const numbers = [0, 1, 2 ** 31, 2 ** 32 + 1, Number.MAX_SAFE_INTEGER];
    const children = numbers.map((number) => named(`device ${number}`, number));
    const names = namesOf(...children);
    expect(children.map(({ place }) => names.deviceAt(place))).toEqual(numbers);
  });

  it('takes as many lines as its spelling needs, and each spelling is whole', () => {
    const lengths = [0, 1, 39, 40, 41, 103, 104, 105, 231, 232, 233, 1_500];
    const children = lengths.map((length) => named(String.fromCharCode(0x61 + (length % 7)).repeat(length), length));
    const names = namesOf(...children);
    for (const child of children) expect(find(names, child.name)).toBe(child);
    expect(children.map(({ place }) => place)).toEqual([1, 2, 3, 4, 5, 7, 9, 11, 15, 19, 23, 31]);
    // The lines of removed records serve again: the same children need no more places.
    for (const child of children) names.delete(child);
    for (const child of children.toReversed()) names.set(child, Buffer.from(child.name));
    for (const child of children) expect(find(names, child.name)).toBe(child);
    expect(Math.max(...children.map(({ place }) => place))).toBe(31);
  });

  it('stays at its place with all that it keeps while other children come', () => {
    const [one, other] = [named('one', 7), named('other', 8)];
    const names = namesOf(one, other);
    const { place } = one;
    names.setNext(place, other.place);
    expect(names.markNamed(place, 5)).toBe(true);
    for (let n = 0; n < 1_000; n += 1) names.set(named(`later ${n}`), Buffer.from(`later ${n}`));
    expect(find(names, 'one')).toBe(one);
    expect([one.place, names.nextOf(place), names.deviceAt(place)]).toEqual([place, other.place, 7]);
    expect([names.markNamed(place, 5), names.markNamed(place, 6)]).toEqual([false, true]);
  });

  it('is compared with the name of the device when it is set, and once after each rename of any device', () => {
    let compared = 0;
    const child = {
      ...named('pump'),
      get isCurrent() {
        compared += 1;
        return true;
      },
    };
    const names = namesOf(child);
    for (let n = 0; n < 3; n += 1) expect(find(names, 'pump')).toBe(child);
    expect(compared).toBe(1);
    renames.count += 1;
    for (let n = 0; n < 3; n += 1) expect(endOf(names, child.place, '"pump":')).toBe(5);
    expect(compared).toBe(2);
  });

  it('does not answer when the device has another name, until the new name is set', () => {
    const child = named('pump');
    const names = namesOf(child);
    expect(find(names, 'pump')).toBe(child);
    child.isCurrent = false;
    renames.count += 1;
    for (let n = 0; n < 2; n += 1) {
      expect([find(names, 'pump'), endOf(names, child.place, '"pump":')]).toEqual([undefined, -1]);
    }
    child.isCurrent = true;
    names.set(child, Buffer.from('fan'));
    expect([find(names, 'pump'), find(names, 'fan')]).toEqual([undefined, child]);
  });

  it('that is set while its device has another name is compared again, without a rename', () => {
    const child = named('pump');
    child.isCurrent = false;
    const names = namesOf(child);
    expect(find(names, 'pump')).toBeUndefined();
    child.isCurrent = true;
    expect(find(names, 'pump')).toBe(child);
  });

  it('does not answer after it was removed, where another child expects it', () => {
    const [one, other] = [named('one'), named('other', 8)];
    const names = namesOf(one, other);
    names.setNext(one.place, other.place);
    names.setNext(other.place, one.place);
    expect(endOf(names, names.nextOf(one.place), '"other":')).toBe(6);
    names.delete(other);
    expect(endOf(names, names.nextOf(one.place), '"other":')).toBe(-1);
    // A child that takes the place answers to its own name only, with its own number.
    const third = named('third', 9);
    names.set(third, Buffer.from('third'));
    expect(third.place).toBe(names.nextOf(one.place));
    const answers = ['"other":', '"third":'].map((text) => endOf(names, names.nextOf(one.place), text));
    expect([...answers, names.deviceAt(third.place), names.nextOf(third.place)]).toEqual([-1, 6, 9, 0]);
  });

  it('knows that a message has named the child by its former spelling', () => {
    const child = named('A');
    const names = namesOf(child);
    expect(names.markNamed(child.place, 3)).toBe(true);
    for (const spelling of ['\\u0041', `\\u0041${' '.repeat(100)}`]) {
      names.set(child, Buffer.from(spelling));
      expect(names.markNamed(child.place, 3)).toBe(false);
    }
    names.delete(child);
    names.set(child, Buffer.from('A'));
    expect(names.markNamed(child.place, 3)).toBe(true);
  });
});
