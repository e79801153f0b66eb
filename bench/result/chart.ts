/** Charts as SVG without scripts: lines over the seconds of a load, and bars of its latencies. */

export interface Line {
  name: string;
  /** One for each second; undefined = no figure. */
  values: (number | undefined)[];
}

/** A moment at which something happened, as a vertical line. */
export interface Mark {
  name: string;
  /** Seconds from the begin of the load. */
  second: number;
}

interface Bar {
  name: string;
  value: number;
}

const width = 560;
const height = 200;
const left = 60;
const bottom = 24;
const top = 24;
const right = 12;
const colours = ['#1f77b4', '#d62728', '#2ca02c', '#9467bd', '#ff7f0e', '#17becf', '#7f7f7f'];
const gridLines = 4;

/** `title` names the unit, too. */
export function lineChart(title: string, lines: Line[], marks: Mark[] = []): string {
  const count = Math.max(2, ...lines.map(({ values }) => values.length));
  const highest = niceAbove(Math.max(0, ...lines.flatMap(({ values }) => values.filter(isFigure))));
  const x = (n: number) => left + (n / (count - 1)) * (width - left - right);
  const y = (value: number) => height - bottom - (value / highest) * (height - top - bottom);
  const paths = lines.map(({ values }, n) => {
    let isDrawing = false;
    const steps = values.map((value, second) => {
      if (!isFigure(value)) {
        isDrawing = false;
        return '';
      }
      const step = `${isDrawing ? 'L' : 'M'}${x(second).toFixed(1)} ${y(value).toFixed(1)}`;
      isDrawing = true;
      return step;
    });
    return `<path d="${steps.join('')}" fill="none" stroke="${colourOf(n)}" stroke-width="1.5"/>`;
  });
  const seconds = [...new Set([1, Math.ceil(count / 2), count])].map((second) => {
    return text(x(second - 1), height - 8, `${second} s`, 'middle');
  });
  const marked = marks.map(({ name, second }) => {
    // The figures of a second are drawn at its end, those of the first one at the left edge.
    const at = x(Math.min(Math.max(0, second - 1), count - 1)).toFixed(1);
    const line = `<line x1="${at}" x2="${at}" y1="${top}" y2="${height - bottom}" stroke="#888" stroke-dasharray="3 3">`;
    return `${line}<title>${escaped(name)}</title></line>`;
  });
  return chart(title, [...grid(highest, y), ...marked, ...paths, ...seconds, ...legend(lines.map(({ name }) => name))]);
}

export function barChart(title: string, bars: Bar[]): string {
  const highest = niceAbove(Math.max(0, ...bars.map(({ value }) => value)));
  const step = (width - left - right) / Math.max(1, bars.length);
  const y = (value: number) => height - bottom - (value / highest) * (height - top - bottom);
  const drawn = bars.map(({ name, value }, n) => {
    const size = `width="${Math.max(1, step - 1).toFixed(1)}" height="${(height - bottom - y(value)).toFixed(1)}"`;
    const place = `x="${(left + n * step).toFixed(1)}" y="${y(value).toFixed(1)}"`;
    return `<rect ${place} ${size} fill="${colourOf(0)}"><title>${escaped(`${name}: ${value}`)}</title></rect>`;
  });
  const labelled = bars.length === 0 ? [] : [...new Set([0, Math.floor(bars.length / 2), bars.length - 1])];
  const labels = labelled.map((n) => text(left + (n + 0.5) * step, height - 8, bars[n]!.name, 'middle'));
  return chart(title, [...grid(highest, y), ...drawn, ...labels]);
}

export function escaped(words: string): string {
  return words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

function chart(title: string, parts: string[]): string {
  const head = `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">`;
  return `<figure><figcaption>${escaped(title)}</figcaption>${head}${parts.join('')}</svg></figure>`;
}

function grid(highest: number, y: (value: number) => number): string[] {
  return Array.from({ length: gridLines + 1 }, (_, n) => {
    const value = (highest * n) / gridLines;
    const at = y(value).toFixed(1);
    const line = `<line x1="${left}" x2="${width - right}" y1="${at}" y2="${at}" stroke="#ddd"/>`;
    return line + text(left - 6, y(value) + 4, shortFigure(value), 'end');
  });
}

function legend(names: string[]): string[] {
  if (names.length < 2) return [];
  let x = left;
  return names.map((name, n) => {
    const place = x;
    x += 14 + 7 * name.length + 14;
    const mark = `<rect x="${place}" y="4" width="10" height="10" fill="${colourOf(n)}"/>`;
    return mark + text(place + 14, 13, name, 'start');
  });
}

function text(x: number, y: number, words: string, anchor: string): string {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}">${escaped(words)}</text>`;
}

function colourOf(n: number): string {
  return colours[n % colours.length]!;
}

function isFigure(value: number | undefined): value is number {
  return value !== undefined && Number.isFinite(value);
}

/** The next greater one of 1, 2, 2.5, 5, 10 … */
function niceAbove(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((nice) => nice >= value)!;
}

function shortFigure(value: number): string {
  if (value >= 1e6) return `${Number((value / 1e6).toFixed(2))} M`;
  if (value >= 1e3) return `${Number((value / 1e3).toFixed(2))} k`;
  return String(Number(value.toFixed(2)));
}
