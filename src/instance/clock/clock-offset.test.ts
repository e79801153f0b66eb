/** The time of an instance when its clock, the database's clock, or both are ahead, late or stepping. */
import { describe, expect, test } from 'vitest';

import { ClockOffset, clockFault, clockSentence, type RememberedClock } from './clock-offset.ts';

const hour = 3_600_000;
const year = 365 * 24 * hour;
const truth = Date.UTC(2026, 0, 1);

/** A host and a database with their clocks, and the true time; the monotonic clock began at the boot, an hour ago. */
class World {
  readonly offset = new ClockOffset();
  ms = 0;
  hostWrong = 0;
  databaseWrong = 0;

  get monotonic(): number {
    return hour + this.ms;
  }

  get host(): number {
    return truth + this.ms + this.hostWrong;
  }

  get database(): number {
    return truth + this.ms + this.databaseWrong;
  }

  /** The time according to the instance, minus the true time. */
  get error(): number {
    return this.offset.anchor! + this.monotonic - (truth + this.ms);
  }

  measure(error = 0.2): this {
    const { database, host, monotonic } = this;
    this.offset.measured({ database, host, monotonic, error });
    return this;
  }

  /** Measures twice a second. */
  run(seconds: number): this {
    for (let n = 0; n < seconds * 2; n += 1) {
      this.ms += 500;
      this.measure();
    }
    return this;
  }

  begin(remembered?: RememberedClock): this {
    this.offset.begin(this.host, this.monotonic, remembered);
    return this;
  }
}

describe.each([
  ['11 minutes ahead', 660_000],
  ['11 minutes behind', -660_000],
  ['a year ahead', year],
])('a host %s', (_, wrong) => {
  test('uses the time of the database, and reports that its own clock is wrong', () => {
    const world = new World();
    world.hostWrong = wrong;
    world.begin().measure();
    expect(Math.abs(world.error)).toBeLessThan(1);
    expect(world.offset.state).toMatchObject({ offsetMs: wrong, verdict: 'wrong' });
    expect(clockSentence(world.offset.state)).toMatch(wrong > 0 ? / s ahead of the / : / s behind the /);
    expect(clockFault(world.offset.state)?.reason).toBe('clock_wrong');
  });

  test('goes by the right time after a restart without the database, whether its clock was repaired or not', () => {
    const remembered = { databaseMs: truth - 60_000, offsetMs: wrong };
    for (const now of [wrong, 0]) {
      const world = new World();
      world.hostWrong = now;
      world.begin(remembered);
      expect(Math.abs(world.error)).toBeLessThan(1);
      expect(world.offset.verdict).toBe(now === 0 ? 'good' : 'wrong');
    }
  });
});

test('a step of the host alone is not followed', () => {
  const world = new World().begin().run(10);
  world.hostWrong = hour;
  world.run(10);
  expect(Math.abs(world.error)).toBeLessThan(1);
  expect(world.offset.verdict).toBe('wrong');
  world.hostWrong = 0;
  world.run(1);
  expect(world.offset.verdict).toBe('good');
});

test('a step of the database alone is not followed, and noticed', () => {
  const world = new World().begin().run(10);
  world.databaseWrong = year;
  world.run(10);
  expect(Math.abs(world.error)).toBeLessThan(1);
  expect(world.offset.isDatabaseStep).toBe(true);
  expect(world.offset.verdict).toBe('wrong');
  world.databaseWrong = 0;
  world.run(1);
  expect(world.offset.isDatabaseStep).toBe(false);
  expect(world.offset.verdict).toBe('good');
});

test.each([hour, -hour])('a step of the database alone by %d ms is not followed after a restart either', (step) => {
  const before = new World().begin().run(10);
  const anchor = before.offset.anchor!;
  const world = new World();
  world.ms = before.ms + 60_000;
  world.databaseWrong = step;
  world
    .begin({ databaseMs: truth + before.ms, offsetMs: 0, anchor })
    .measure()
    .run(10);
  expect(Math.abs(world.error)).toBeLessThan(1);
  expect(world.offset.isDatabaseStep).toBe(true);
  expect(world.offset.verdict).toBe('wrong');
  world.databaseWrong = 0;
  world.run(1);
  expect(world.offset.isDatabaseStep).toBe(false);
  expect(world.offset.verdict).toBe('good');
});

test('after a restart the database is followed when the host agrees with it, and after a boot', () => {
  const truthAt = { databaseMs: truth - 60_000, offsetMs: 0 };
  for (const [remembered, hostWrong] of [
    [{ ...truthAt, anchor: truth - hour - year }, 0],
    [{ ...truthAt, anchor: truth - hour }, year],
    [truthAt, 0],
  ] as const) {
    const world = new World();
    world.hostWrong = hostWrong;
    world.begin(remembered).measure();
    expect(Math.abs(world.error)).toBeLessThan(1);
    expect(world.offset.isDatabaseStep).toBe(false);
  }
});

test('a step of both, or a host that slept, is followed', () => {
  const world = new World().begin().run(10);
  world.hostWrong = hour;
  world.databaseWrong = hour;
  world.run(1);
  expect(Math.abs(world.error - hour)).toBeLessThan(1);
  expect(world.offset.verdict).toBe('good');
});

test('a small difference is caught up with by a slower clock, never by a step back', () => {
  const world = new World().begin().run(10);
  world.databaseWrong = -2_000;
  world.hostWrong = -2_000;
  let before = world.error + truth + world.ms;
  for (let n = 0; n < 60; n += 1) {
    world.run(0.5);
    const time = world.error + truth + world.ms;
    expect(time).toBeGreaterThan(before);
    before = time;
  }
  expect(Math.abs(world.error + 2_000)).toBeLessThan(1);
});

test('a slow answer does not move a time that was measured well', () => {
  const world = new World().begin().run(10);
  world.databaseWrong = 300;
  world.measure(400);
  world.databaseWrong = 0;
  expect(Math.abs(world.error)).toBeLessThan(1);
  expect(world.offset.verdict).toBe('good');
});

test('a slow first answer does not move a time that lies within its error', () => {
  const world = new World().begin();
  world.databaseWrong = -70;
  world.measure(75);
  expect(world.error).toBe(0);
  const other = new World().begin();
  other.databaseWrong = -200;
  expect(other.measure(75).error).toBe(-200);
});

test('between half a second and five the host is off, not wrong', () => {
  const world = new World();
  world.hostWrong = 700;
  world.begin().run(1);
  expect(world.offset.verdict).toBe('off');
  expect(clockSentence(world.offset.state)).toContain('0.7 s ahead');
  expect(clockFault(world.offset.state)).toBeUndefined();
});

test('without any measurement the clock of the host is taken, unjudged', () => {
  const world = new World();
  world.hostWrong = 1_234;
  world.begin();
  expect(world.error).toBe(1_234);
  expect(world.offset.verdict).toBe('unmeasured');
});
