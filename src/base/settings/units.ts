/**
 * Units of settings. The name of a setting contains its unit: `bodyBytesMax`, `timeoutMs`, `idleSeconds`, `keptDays`. A
 * plain number has that unit; a number with a unit of its own (`50MB`, `10m`) is converted. Used by `settings.ts`.
 */

export type SettingUnit = 'bytes' | 'milliseconds' | 'seconds' | 'days';

const unitOfWord: Record<string, SettingUnit> = {
  bytes: 'bytes',
  ms: 'milliseconds',
  seconds: 'seconds',
  days: 'days',
};

const sizes: Record<string, number> = {
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};

/** The milliseconds of each unit. */
const times: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

const scales: Record<SettingUnit, number> = { bytes: 1, milliseconds: 1, seconds: times['s']!, days: times['d']! };

/** Returns the unit of a plain number of this setting; undefined when it has none. */
export function unitOfSetting(key: string): SettingUnit | undefined {
  const words = key.match(/[A-Z]?[a-z]+/g) ?? [];
  return words.map((word) => unitOfWord[word.toLowerCase()]).find((unit) => unit !== undefined);
}

/** Returns the number in `unit`; NaN when the text is not a number with a unit of the same kind. */
export function parseWithUnit(text: string, unit: SettingUnit): number {
  const [, digits, suffix = ''] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$/i.exec(text) ?? [];
  if (digits === undefined) return Number.NaN;
  // Letters of sizes differ from user to user; an "M" in a time might be meant as minutes or months.
  const factor = unit === 'bytes' ? sizes[suffix.toLowerCase()] : times[suffix];
  if (factor === undefined) return Number.NaN;
  const value = (Number(digits) * factor) / scales[unit];
  const whole = Math.round(value);
  // A fraction such as 1.1 is not exact in binary.
  return Math.abs(value - whole) < 1e-9 * Math.max(1, value) ? whole : Number.NaN;
}

/** Returns the units that a setting takes, for a sentence. */
export function allowedUnits(unit: SettingUnit): string {
  return unit === 'bytes' ? 'kB, MB, GB, TB of 1000; KiB, MiB, GiB, TiB of 1024' : 'ms, s, m, h, d';
}

/** Returns the value with the largest unit that divides it, such as `50 MiB`; '' when its own unit is the best one. */
export function readable(value: number, unit: SettingUnit): string {
  if (value === 0) return '';
  const [table, names] = unit === 'bytes' ? [sizes, sizeNames] : [times, Object.keys(times)];
  const smallest = value * scales[unit];
  const dividing = names.filter((name) => smallest % table[name.toLowerCase()]! === 0);
  const name = dividing.at(-1);
  if (name === undefined || table[name.toLowerCase()]! <= scales[unit]) return '';
  return `${smallest / table[name.toLowerCase()]!} ${name}`;
}

/** From small to large; powers of 1024 are more usual in settings than powers of 1000. */
const sizeNames = ['kB', 'MB', 'GB', 'TB', 'KiB', 'MiB', 'GiB', 'TiB'];
