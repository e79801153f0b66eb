/** Charts as SVG without scripts: lines over the seconds of a load, and bars of its latencies. */

export interface Line {
  name: string;
  /** One for each second; undefined = no figure, as null in a file. */
  values: (number | undefined)[];
}

/** A moment at which something happened, as a vertical line with the number of the moment. */
export interface Mark {
  name: string;
  /** Seconds from the begin of the load. */
  second: number;
}

interface LineOptions {
  marks?: Mark[];
  isLatency?: boolean;
}

interface Bar {
  name: string;
  value: number;
}

const width = 560;
const height = 200;
const left = 60;
const bottom = 24;
const top = 18;
const right = 12;
const gridLines = 4;
/** Lines whose values differ by this factor have a logarithmic axis: the lower one would lie on the ground. */
const logarithmicFrom = 50;
/** Colours of lines, on a light and on a dark page. */
const colours = [
  ['#1f77b4', '#5aa9e6'],
  ['#d62728', '#ff7b72'],
  ['#2a8a2a', '#57c457'],
  ['#8052ad', '#b392f0'],
  ['#c65d00', '#ffa657'],
  ['#0e8a99', '#39c5cf'],
  ['#6b6b6b', '#a8a8a8'],
];

const colourRules = (which: 0 | 1) => colours.map((pair, n) => `.c${n} { --c: ${pair[which]}; }`).join(' ');

/** The rules of charts, for the style of a page with the variables `--text`, `--grid` and `--mark`. */
export const chartStyle = `
  figure { display: inline-block; margin: 0 1rem 1rem 0; width: ${width}px; max-width: 100%; vertical-align: top; }
  figcaption { font-weight: 600; margin-bottom: 4px; }
  figure svg { display: block; width: 100%; height: auto; }
  svg text { font: 11px system-ui, sans-serif; fill: var(--text); }
  .legend { font-size: 12px; } .legend span { display: inline-block; margin-right: 14px; }
  .legend i { display: inline-block; width: 10px; height: 10px; margin-right: 4px; background: var(--c); }
  .line { fill: none; stroke: var(--c); stroke-width: 1.5; } .dot, .bar { fill: var(--c); }
  .grid { stroke: var(--grid); } .mark { stroke: var(--mark); stroke-dasharray: 3 3; }
  ${colourRules(0)}
  @media (max-width: 620px) { figure { margin-right: 0; } svg text { font-size: 17px; } }
  @media (prefers-color-scheme: dark) { ${colourRules(1)} }`;

/** The vertical axis of a chart. */
interface Axis {
  /** Values with a line and a label. */
  ticks: number[];
  y(value: number): number;
}

/** `title` names the unit, too. `isLatency`: the values may need a logarithmic axis. */
export function lineChart(title: string, lines: Line[], { marks = [], isLatency = false }: LineOptions = {}): string {
  const count = Math.max(2, ...lines.map(({ values }) => values.length));
  const values = lines.flatMap((line) => line.values.filter(isFigure));
  const axis = (isLatency && logarithmicAxis(values)) || linearAxis(values);
  const x = (n: number) => left + (n / (count - 1)) * (width - left - right);
  const paths = lines.map((line, n) => pathOf(line, n, x, axis));
  const seconds = [...new Set([1, Math.ceil(count / 2), count])].map((second) => {
    return text(x(second - 1), height - 6, `${second} s`, second === count ? 'end' : 'middle');
  });
  const marked = marks.map(({ name, second }, n) => {
    // The figures of a second are drawn at its end, those of the first one at the left edge.
    const at = x(Math.min(Math.max(0, second - 1), count - 1));
    const place = `x1="${at.toFixed(1)}" x2="${at.toFixed(1)}" y1="${top}" y2="${height - bottom}"`;
    const line = `<line class="mark" ${place}><title>${escaped(name)}</title></line>`;
    return line + text(at, top - 3, `${n + 1}`, 'middle');
  });
  const isLogarithmic = axis.ticks[0] !== 0;
  const named = isLogarithmic ? `${title}, logarithmic` : title;
  return chart(named, lines.length > 1 ? legend(lines) : '', [...grid(axis), ...marked, ...paths, ...seconds]);
}

export function barChart(title: string, bars: Bar[]): string {
  const axis = linearAxis(bars.map(({ value }) => value));
  const step = (width - left - right) / Math.max(1, bars.length);
  const ground = height - bottom;
  const drawn = bars.map(({ name, value }, n) => {
    // A bar of few messages is seen beside one of millions.
    const tall = value > 0 ? Math.max(1.5, ground - axis.y(value)) : 0;
    const size = `width="${Math.max(1, step - 1).toFixed(1)}" height="${tall.toFixed(1)}"`;
    const place = `x="${(left + n * step).toFixed(1)}" y="${(ground - tall).toFixed(1)}"`;
    return `<rect class="bar c0" ${place} ${size}><title>${escaped(`${name}: ${value}`)}</title></rect>`;
  });
  const labelled = bars.length === 0 ? [] : [...new Set([0, Math.floor(bars.length / 2), bars.length - 1])];
  const labels = labelled.map((n) => {
    const isLast = n === bars.length - 1 && n > 0;
    return text(left + (n + (isLast ? 1 : 0.5)) * step, height - 6, bars[n]!.name, isLast ? 'end' : 'middle');
  });
  return chart(title, '', [...grid(axis), ...drawn, ...labels]);
}

export function escaped(words: string): string {
  return words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

/** A value between two seconds without one is a dot. */
function pathOf({ values }: Line, n: number, x: (second: number) => number, axis: Axis): string {
  const isAt = (second: number) => isFigure(values[second]);
  const place = (second: number) => [x(second).toFixed(1), axis.y(values[second]!).toFixed(1)];
  const seconds = values.map((_, second) => second).filter(isAt);
  const steps = seconds.map((second) => `${isAt(second - 1) ? 'L' : 'M'}${place(second).join(' ')}`);
  const alone = seconds.filter((second) => !isAt(second - 1) && !isAt(second + 1));
  const dots = alone.map((second) => {
    const [cx, cy] = place(second);
    return `<circle class="dot c${colourOf(n)}" cx="${cx}" cy="${cy}" r="2"/>`;
  });
  return `<path class="line c${colourOf(n)}" d="${steps.join('')}"/>${dots.join('')}`;
}

function chart(title: string, names: string, parts: string[]): string {
  const head = `<svg viewBox="0 0 ${width} ${height}" role="img">`;
  return `<figure><figcaption>${escaped(title)}</figcaption>${head}${parts.join('')}</svg>${names}</figure>`;
}

function linearAxis(values: number[]): Axis {
  const highest = niceAbove(Math.max(0, ...values));
  const ticks = Array.from({ length: gridLines + 1 }, (_, n) => (highest * n) / gridLines);
  return { ticks, y: (value) => height - bottom - (Math.max(0, value) / highest) * (height - top - bottom) };
}

/** Returns undefined when a linear axis shows the values as well. */
function logarithmicAxis(values: number[]): Axis | undefined {
  const above = values.filter((value) => value > 0);
  const [least, greatest] = [Math.min(...above), Math.max(...above)];
  if (above.length === 0 || greatest / least < logarithmicFrom) return undefined;
  const [from, to] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(greatest))];
  const ticks = Array.from({ length: to - from + 1 }, (_, n) => 10 ** (from + n));
  const partOf = (value: number) => (Math.log10(Math.max(value, least)) - from) / (to - from);
  return { ticks, y: (value) => height - bottom - partOf(value) * (height - top - bottom) };
}

function grid({ ticks, y }: Axis): string[] {
  return ticks.map((value) => {
    const at = y(value).toFixed(1);
    const line = `<line class="grid" x1="${left}" x2="${width - right}" y1="${at}" y2="${at}"/>`;
    return line + text(left - 6, y(value) + 4, shortFigure(value), 'end');
  });
}

function legend(lines: Line[]): string {
  const names = lines.map(({ name }, n) => `<span><i class="c${colourOf(n)}"></i>${escaped(name)}</span>`);
  return `<div class="legend">${names.join('')}</div>`;
}

function text(x: number, y: number, words: string, anchor: string): string {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}">${escaped(words)}</text>`;
}

function colourOf(n: number): number {
  return n % colours.length;
}

function isFigure(value: number | undefined): value is number {
  return Number.isFinite(value);
}

/** The next greater one of 1, 2, 4, 6, 8, 10, 20 …: a quarter of each has few digits. */
function niceAbove(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * power).find((nice) => nice >= value)!;
}

/** As in `2.5 k`, `12 M`, `0.0025`, `2.5e-5`. */
function shortFigure(value: number): string {
  if (value > 0 && value < 0.0001) return Number(value.toPrecision(3)).toExponential();
  const [factor, unit] = (
    [
      [1e9, ' G'],
      [1e6, ' M'],
      [1e3, ' k'],
    ] as const
  ).find(([each]) => value >= each) ?? [1, ''];
  return `${Number((value / factor).toPrecision(3))}${unit}`;
}
