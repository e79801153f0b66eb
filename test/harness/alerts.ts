/**
 * Evaluates the alert rules of ops/alerts.yaml against pages of /metrics: the part of PromQL that the rules use. A rule
 * with `increase` compares two pages. `for` is left out: a test waits for the condition itself.
 */
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import type { Api } from './api.ts';

interface Rule {
  alert: string;
  expr: string;
  labels: { severity: string };
  annotations: { summary: string };
}

interface Series {
  labels: Record<string, string>;
  value: number;
}

/** The labels that Prometheus adds to what it scrapes. */
const target = { job: 'millrace', instance: 'here' };

export function readRules(): Rule[] {
  const { groups } = parse(readFileSync('ops/alerts.yaml', 'utf8')) as { groups: { rules: Rule[] }[] };
  return groups.flatMap(({ rules }) => rules);
}

/** Reads /metrics as Prometheus does: `up` says whether the port answered. */
export async function scrape(api: Api): Promise<string> {
  const page = await api.metricsPage().catch(() => undefined);
  return page === undefined ? 'up 0\n' : `up 1\n${page}`;
}

/** Returns the names of the alerts whose condition holds, in the order of the file. */
export function firing(page: string, earlier = page): string[] {
  return readRules().flatMap(({ alert, expr }) => (new Evaluation(expr, page, earlier).holds() ? [alert] : []));
}

const token =
  /\s*(increase|abs|and|on|group_left|>=|<=|==|[<>*/()]|\d+(?:\.\d+)?|[a-z_]\w*(?:\{[^}]*\})?(?:\[\w+\])?)/y;

/** Returns the counters, with those of histograms, that are smaller than on an earlier page of the same engine. */
export function fallen(page: string, earlier: string): string[] {
  const counters = (text: string) => [...text.matchAll(/^((?:\w+_total|\w+_bucket|\w+_count)(?:\{.*\})?) (\S+)$/gm)];
  const now = new Map(counters(page).map(([, series, value]) => [series!, Number(value)]));
  return counters(earlier).flatMap(([, series, value]) => {
    const later = now.get(series!) ?? 0;
    return later < Number(value) ? [`${series} ${value} → ${later}`] : [];
  });
}

class Evaluation {
  readonly #tokens: string[] = [];
  readonly #page: string;
  readonly #earlier: string;
  #at = 0;

  constructor(expression: string, page: string, earlier: string) {
    this.#page = page;
    this.#earlier = earlier;
    token.lastIndex = 0;
    while (token.lastIndex < expression.length) {
      const [, text] = token.exec(expression) ?? [];
      if (text === undefined) throw new Error(`not understood: ${expression}`);
      this.#tokens.push(text);
    }
  }

  holds(): boolean {
    let series = this.#comparison();
    while (this.#take('and')) {
      for (const expected of ['on', '(']) if (!this.#take(expected)) throw new Error(`expected ${expected}`);
      const label = this.#next();
      if (!this.#take(')')) throw new Error('expected )');
      const others = this.#comparison();
      series = series.filter(({ labels }) => others.some((other) => other.labels[label] === labels[label]));
    }
    if (this.#at < this.#tokens.length) throw new Error(`not understood: ${this.#tokens.slice(this.#at).join(' ')}`);
    return series.length > 0;
  }

  #comparison(): Series[] {
    const left = this.#product();
    const operator = this.#next();
    const right = this.#product();
    const compare = comparisons[operator];
    if (compare === undefined) throw new Error(`${operator} is no comparison`);
    return left.filter(({ value, labels }) => compare(value, match(right, labels)));
  }

  #product(): Series[] {
    let left = this.#term();
    for (;;) {
      const operator = this.#take('*') ? '*' : this.#take('/') ? '/' : undefined;
      if (operator === undefined) return left;
      const label = this.#joined();
      const right = this.#term();
      if (label !== undefined) {
        const one = (labels: Record<string, string>) => right.find((each) => each.labels[label] === labels[label]);
        left = left.map(({ labels, value }) => ({ labels, value: value / (one(labels)?.value ?? Number.NaN) }));
        continue;
      }
      const isScalar = left.length === 1 && Object.keys(left[0]!.labels).length === 0;
      const [base, other] = isScalar ? [right, left] : [left, right];
      left = base.map(({ labels, value }) => {
        const factor = match(other, labels);
        return { labels, value: operator === '*' ? value * factor : value / factor };
      });
    }
  }

  /** Takes `on (label) group_left ()` after a division: one series on the right belongs to several on the left. */
  #joined(): string | undefined {
    if (!this.#take('on')) return undefined;
    if (!this.#take('(')) throw new Error('expected (');
    const label = this.#next();
    for (const expected of [')', 'group_left', '(', ')'])
      if (!this.#take(expected)) throw new Error(`expected ${expected}`);
    return label;
  }

  #term(): Series[] {
    const text = this.#next();
    if (/^\d/.test(text)) return [{ labels: {}, value: Number(text) }];
    if (text !== 'increase' && text !== 'abs') return select(this.#page, text);
    if (!this.#take('(')) throw new Error('expected (');
    const selector = this.#next().replace(/\[\w+\]$/, '');
    if (!this.#take(')')) throw new Error('expected )');
    const now = select(this.#page, selector);
    if (text === 'abs') return now.map(({ labels, value }) => ({ labels, value: Math.abs(value) }));
    const before = select(this.#earlier, selector);
    // Prometheus knows no increase of a series that it sees for the first time, and then no comparison holds.
    return now.map(({ labels, value }) => ({ labels, value: value - match(before, labels) }));
  }

  #next(): string {
    const text = this.#tokens[this.#at];
    if (text === undefined) throw new Error('the expression ends too early');
    this.#at += 1;
    return text;
  }

  #take(text: string): boolean {
    if (this.#tokens[this.#at] !== text) return false;
    this.#at += 1;
    return true;
  }
}

const comparisons: Record<string, (a: number, b: number) => boolean> = {
  '>': (a, b) => a > b,
  '<': (a, b) => a < b,
  '>=': (a, b) => a >= b,
  '<=': (a, b) => a <= b,
  '==': (a, b) => a === b,
};

/** The value of the series with equal labels, or of a number. */
function match(series: Series[], labels: Record<string, string>): number {
  const wanted = JSON.stringify(labels);
  const found = series.find((each) => Object.keys(each.labels).length === 0 || JSON.stringify(each.labels) === wanted);
  return found?.value ?? Number.NaN;
}

function select(page: string, selector: string): Series[] {
  const [, name, matchers = ''] = /^(\w+)(?:\{(.*)\})?$/.exec(selector) ?? [];
  if (name === undefined) throw new Error(`no selector: ${selector}`);
  const wanted = labelsOf(matchers);
  return page.split('\n').flatMap((line) => {
    const [, own, text = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (own !== name) return [];
    const labels = { ...target, ...labelsOf(text) };
    const isWanted = Object.entries(wanted).every(([label, each]) => labels[label as 'job'] === each);
    return isWanted ? [{ labels, value: value === '+Inf' ? Number.POSITIVE_INFINITY : Number(value) }] : [];
  });
}

function labelsOf(text: string): Record<string, string> {
  return Object.fromEntries([...text.matchAll(/(\w+)="([^"]*)"/g)].map(([, label, value]) => [label!, value!]));
}
