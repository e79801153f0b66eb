/**
 * docs/errors.md is the list of reasons of the code, and every reason is in use. The command
 * `npx vitest run --project unit test/errors.unit.test.ts -u` writes the page.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { errorCodeOf, Fault } from '../src/base/errors.ts';
import { type Reason, reasons, statusOf } from '../src/base/reasons.ts';
import { answerOf } from '../src/mqtt/incoming/answers.ts';
import { closings } from '../src/mqtt/wire/close-reason.ts';

const root = join(import.meta.dirname, '..');
const all = Object.entries(reasons).flatMap(([status, names]) =>
  Object.entries(names).map(([name, meaning]) => ({ status: Number(status), name: name as Reason, meaning })),
);

/** A link of the page; pages lie in one folder. */
const link = (text: string, page: string) => `[${text}](${page.replace('docs/', '')})`;

const intro = `# Errors

Written by \`test/errors.unit.test.ts\` from \`src/base/reasons.ts\` and \`src/mqtt/wire/close-reason.ts\`.

Each refusal has one reason. The reason is the label of \`millrace_ingest_rejected_total{reason}\` and \`millrace_mqtt_discarded_total{reason,qos}\` and a
word of the log. The body of an HTTP answer has the status, the error code and a sentence that says what to change
(${link('REST', 'docs/rest.md#errors')}, ${link('HTTP', 'docs/http.md#errors')}). MQTT 5 has the reason code of the last column and the sentence, MQTT 3 see
${link('Refusals', 'docs/mqtt.md#refusals')}. The report API answers 403 where this list has 401.
`;

const hex = (code: number) => `0x${code.toString(16).toUpperCase().padStart(2, '0')}`;

function page(): string {
  const rows = all.map(({ status, name, meaning }) => {
    const { code } = answerOf(new Fault(name, ''));
    return `| ${status} | ${errorCodeOf(name)} | \`${name}\` | ${meaning} | ${hex(code)} |`;
  });
  const ends = Object.entries(closings).map(([name, { code, sentence }]) => {
    return `| \`${name}\` | ${code === undefined ? '' : hex(code)} | ${sentence} |`;
  });
  return [
    intro,
    '| status | errorCode | reason | meaning | MQTT 5 |',
    '|---|---|---|---|---|',
    ...rows,
    '\n## Why an MQTT connection ends\n',
    'The reason is the label of `millrace_mqtt_disconnects_total{reason}`. MQTT 5 gets the code in DISCONNECT, with the sentence.\n',
    '| reason | MQTT 5 | sentence |',
    '|---|---|---|',
    ...ends,
    '',
  ].join('\n');
}

test('docs/errors.md is the list of the code', async () => {
  await expect(page()).toMatchFileSnapshot(join(root, 'docs/errors.md'));
});

test('a reason has one status', () => {
  expect(all.filter(({ status, name }) => statusOf(name) !== status)).toEqual([]);
});

test('every reason of the list is in use', () => {
  const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts') && !file.endsWith('base/reasons.ts'))
    .map((file) => readFileSync(join(root, 'src', file), 'utf8'))
    .join('\n');
  const words = new Set(sources.match(/(?<=['`])[a-z]+(?:_[a-z0-9]+)*(?:_\$\{|(?='))/g));
  // For names like `rate_limit_${scope}` checks the part before the last word.
  const isUsed = (name: string) => words.has(name) || words.has(`${name.slice(0, name.lastIndexOf('_'))}_\${`);
  expect(all.map(({ name }) => name).filter((name) => !isUsed(name))).toEqual([]);
});
