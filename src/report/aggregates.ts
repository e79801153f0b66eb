/**
 * Aggregations in SQL, in three steps: `point` over the points of one device and date base, `merge` over the results of
 * one group, `result` as a cell. Numbers stay exact: integers are added in 128 bits, separately from doubles. Equal
 * queries get equal answers, because doubles are added in pieces (clickhouse/equal-sum.ts). Booleans count as 1 and 0;
 * strings and JSON are not numbers.
 */
import { type SumPiece, sumOfPieces, sumPieces } from '../clickhouse/equal-sum.ts';
import type { Aggregation, LatenessAggregation } from './view.ts';

/** The kinds of cells, as numbered by the last step of the SQL. */
export const CellKind = { empty: 0, exact: 1, double: 2, text: 3 } as const;

interface Column {
  /** SQL over the points that fulfil the condition `c`. */
  point(c: string): string;
  /** The value in a branch of the query without this column. */
  neutral: string;
  /** SQL over groups; `name` returns the name of a column of this value. */
  merge(name: (column: string) => string): string;
}

export interface Aggregate {
  columns: Record<string, Column>;
  /** True when `merge` reads the device of the points. */
  ofDevice?: true;
  /** SQL of the cell: its kind, its string and its double. */
  result(name: (column: string) => string): { kind: string; text: string; double: string };
}

const isWhole = 'kind <= 2';
const isDouble = 'kind = 3';

/** The string by which a value is counted; 42.0 and 42 are the same. */
export const valueText = `multiIf(kind = 2, toString(int), kind = 3, toString(num + 0), kind = 1, if(int = 1, 'true', 'false'), text)`;

const wholes: Column = {
  point: (c) => `countIf(${isWhole} AND ${c})`,
  neutral: 'toUInt64(0)',
  merge: (name) => `sum(${name('wholes')})`,
};
const doubles: Column = {
  point: (c) => `countIf(${isDouble} AND ${c})`,
  neutral: 'toUInt64(0)',
  merge: (name) => `sum(${name('doubles')})`,
};
const points: Column = {
  point: (c) => `countIf(${c})`,
  neutral: 'toUInt64(0)',
  merge: (name) => `sum(${name('points')})`,
};

const sums = {
  whole: {
    point: (c) => `sumIf(toInt128(int), ${isWhole} AND ${c})`,
    neutral: 'toInt128(0)',
    merge: (name) => `sum(${name('whole')})`,
  },
  ...doublePieces(),
  wholes,
  doubles,
} satisfies Record<string, Column>;

function doublePieces(): Record<SumPiece, Column> {
  const columnOf = ([piece, num]: [string, string]): [string, Column] => [
    piece,
    {
      point: (c) => `sumIf(${num}, ${isDouble} AND ${c})`,
      neutral: 'toFloat64(0)',
      merge: (name) => `sum(${name(piece)})`,
    },
  ];
  return Object.fromEntries(Object.entries(sumPieces('num')).map(columnOf)) as Record<SumPiece, Column>;
}

/** Whole numbers and doubles together. */
const total = (name: (column: string) => string) => `(toFloat64(${name('whole')}) + ${sumOfPieces(name)})`;

const counted = (name: (column: string) => string) => `${name('wholes')} + ${name('doubles')} = 0`;

const sum: Aggregate = {
  columns: sums,
  result: (name) => ({
    kind: `multiIf(${counted(name)}, 0, ${name('doubles')} = 0, 1, 2)`,
    text: `toString(${name('whole')})`,
    double: total(name),
  }),
};

const average: Aggregate = {
  columns: sums,
  result: (name) => ({
    kind: `if(${counted(name)}, 0, 2)`,
    text: `''`,
    double: `${total(name)} / (${name('wholes')} + ${name('doubles')})`,
  }),
};

/** `ofSome`: the function that picks the value; `before` compares two numbers as this function does. */
function extreme(ofSome: 'minIf' | 'maxIf', before: '<=' | '>='): Aggregate {
  return {
    columns: {
      whole: {
        point: (c) => `${ofSome}(int, ${isWhole} AND ${c})`,
        neutral: 'toInt64(0)',
        merge: (name) => `${ofSome}(${name('whole')}, ${name('wholes')} > 0)`,
      },
      double: {
        point: (c) => `${ofSome}(num, ${isDouble} AND ${c})`,
        neutral: 'toFloat64(0)',
        merge: (name) => `${ofSome}(${name('double')}, ${name('doubles')} > 0)`,
      },
      wholes,
      doubles,
    },
    result(name) {
      const wholeCounts = `${name('wholes')} > 0 AND toFloat64(${name('whole')}) ${before} ${name('double')}`;
      return {
        kind: `multiIf(${counted(name)}, 0, ${name('doubles')} = 0 OR (${wholeCounts}), 1, 2)`,
        text: `toString(${name('whole')})`,
        double: name('double'),
      };
    },
  };
}

const count: Aggregate = {
  columns: { points },
  result: (name) => ({ kind: `if(${name('points')} = 0, 0, 1)`, text: `toString(${name('points')})`, double: '0.' }),
};

const unique: Aggregate = {
  columns: {
    points,
    texts: {
      point: (c) => `uniqExactStateIf(${valueText}, ${c})`,
      neutral: `arrayReduce('uniqExactState', emptyArrayString())`,
      merge: (name) => `uniqExactMerge(${name('texts')})`,
    },
  },
  result: (name) => ({ kind: `if(${name('points')} = 0, 0, 1)`, text: `toString(${name('texts')})`, double: '0.' }),
};

/** Picks the point of the newest device among several points of one moment. */
const latest: Aggregate = {
  ofDevice: true,
  columns: {
    points,
    at: {
      point: (c) => `maxIf(ts, ${c})`,
      neutral: 'toInt64(0)',
      merge: (name) => `maxIf(${name('at')}, ${name('points')} > 0)`,
    },
    value: {
      point: (c) => `argMaxIf((kind, num, int, text), (ts, seq, origin), ${c})`,
      neutral: `(toUInt8(0), toFloat64(0), toInt64(0), '')`,
      merge: (name) => `argMaxIf(${name('value')}, (${name('at')}, device), ${name('points')} > 0)`,
    },
  },
  result(name) {
    const [kind, num, int, text] = [1, 2, 3, 4].map((n) => `${name('value')}.${n}`);
    return {
      kind: `multiIf(${name('points')} = 0, 0, ${kind} = 2, 1, ${kind} = 3, 2, 3)`,
      text: `multiIf(${kind} = 2, toString(${int}), ${kind} = 1, if(${int} = 1, 'true', 'false'), ${text})`,
      double: num!,
    };
  },
};

const latenessSum: Column = {
  point: (c) => `sumIf(toInt128(late_ms), ${c})`,
  neutral: 'toInt128(0)',
  merge: (name) => `sum(${name('late')})`,
};

function extremeLateness(function_: 'minIf' | 'maxIf'): Aggregate {
  return {
    columns: {
      points,
      late: {
        point: (c) => `${function_}(late_ms, ${c})`,
        neutral: 'toInt64(0)',
        merge: (name) => `${function_}(${name('late')}, ${name('points')} > 0)`,
      },
    },
    result: latenessResult,
  };
}

const latestLateness: Aggregate = {
  ofDevice: true,
  columns: {
    points,
    at: latest.columns['at']!,
    late: {
      point: (c) => `argMaxIf(late_ms, (ts, seq, origin), ${c})`,
      neutral: 'toInt64(0)',
      merge: (name) => `argMaxIf(${name('late')}, (${name('at')}, device), ${name('points')} > 0)`,
    },
  },
  result: latenessResult,
};

/** The smallest lateness that this share of the points does not exceed. Needs memory for each different lateness. */
function percentile(share: number): Aggregate {
  const function_ = `quantileExactWeighted`;
  return {
    columns: {
      points,
      late: {
        point: (c) => `${function_}StateIf(${share})(late_ms, toUInt8(1), ${c})`,
        neutral: `arrayReduce('${function_}State(${share})', emptyArrayInt64(), emptyArrayUInt8())`,
        merge: (name) => `${function_}Merge(${share})(${name('late')})`,
      },
    },
    result: latenessResult,
  };
}

function latenessResult(name: (column: string) => string): { kind: string; text: string; double: string } {
  return { kind: `if(${name('points')} = 0, 0, 1)`, text: `toString(${name('late')})`, double: '0.' };
}

/** Aggregates `late_ms` of points, in whole milliseconds; the average is a double. */
export const latenessAggregates: Record<LatenessAggregation, Aggregate> = {
  AVG: {
    columns: { points, late: latenessSum },
    result: (name) => ({
      kind: `if(${name('points')} = 0, 0, 2)`,
      text: `''`,
      double: `toFloat64(${name('late')}) / ${name('points')}`,
    }),
  },
  MIN: extremeLateness('minIf'),
  MAX: extremeLateness('maxIf'),
  LATEST: latestLateness,
  P50: percentile(0.5),
  P95: percentile(0.95),
  P99: percentile(0.99),
};

/** The share of the expected points that are present, from the entries of `completeness.ts`. */
export const completenessAggregate: Aggregate = {
  columns: {
    present: {
      point: (c) => `sumIf(toUInt64(present), ${c})`,
      neutral: 'toUInt64(0)',
      merge: (name) => `sum(${name('present')})`,
    },
    missing: {
      point: (c) => `sumIf(toUInt64(missing), ${c})`,
      neutral: 'toUInt64(0)',
      merge: (name) => `sum(${name('missing')})`,
    },
  },
  result: (name) => ({
    kind: `if(${name('present')} + ${name('missing')} = 0, 0, 2)`,
    text: `''`,
    double: `${name('present')} / (${name('present')} + ${name('missing')})`,
  }),
};

/** Points made by `deltas.ts`, whose value is the step since the previous point. */
const delta = sum;

export const aggregates: Record<Aggregation, Aggregate> = {
  AVG: average,
  SUM: sum,
  MIN: extreme('minIf', '<='),
  MAX: extreme('maxIf', '>='),
  LATEST: latest,
  COUNT: count,
  UNIQ: unique,
  DELTA: delta,
};

/**
 * Aggregates properties of devices instead of points: each device of a group counts once, however many points it has.
 * `kind` and `text` are columns of the device; kind 0 means no value.
 */
export function ofDevices(
  aggregation: Aggregation,
  kind: string,
  text: string,
): { kind: string; text: string; double: string } {
  const has = `${kind} > 0`;
  const isNumber = `${kind} IN (1, 2, 3)`;
  const number = `multiIf(${kind} = 1, toFloat64(${text} = 'true'), toFloat64OrZero(${text}))`;
  const anyNumber = `countIf(${isNumber}) = 0`;
  /** Each device once, with its number. The devices are in order, because a sum of doubles depends on the order. */
  const numbers = `arraySort(groupUniqArrayIf((device, ${number}), ${isNumber}))`;
  switch (aggregation) {
    case 'COUNT':
      return { kind: `if(countIf(${has}) = 0, 0, 1)`, text: `toString(uniqExactIf(device, ${has}))`, double: '0.' };
    case 'UNIQ':
      return { kind: `if(countIf(${has}) = 0, 0, 1)`, text: `toString(uniqExactIf(${text}, ${has}))`, double: '0.' };
    case 'MIN':
      return { kind: `if(${anyNumber}, 0, 2)`, text: `''`, double: `minIf(${number}, ${isNumber})` };
    case 'MAX':
      return { kind: `if(${anyNumber}, 0, 2)`, text: `''`, double: `maxIf(${number}, ${isNumber})` };
    case 'SUM':
      return { kind: `if(${anyNumber}, 0, 2)`, text: `''`, double: `arraySum((n) -> n.2, ${numbers})` };
    case 'AVG':
      return { kind: `if(${anyNumber}, 0, 2)`, text: `''`, double: `arrayAvg((n) -> n.2, ${numbers})` };
    case 'LATEST':
    case 'DELTA': {
      const newest = (of: string) => `argMaxIf(${of}, device, ${has})`;
      return {
        kind: `multiIf(countIf(${has}) = 0, 0, ${newest(kind)} IN (2, 3), 1, 3)`,
        text: newest(text),
        double: '0.',
      };
    }
  }
}
