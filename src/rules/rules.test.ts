/** Templates and the table of answers: their results, and the one line of each error. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { messageOf } from '../base/errors.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { readJson } from '../value/json.ts';
import { Calls, type CallsDeps } from './calls.ts';
import { readRules } from './file.ts';
import { compileRule } from './table.ts';
import { compileTemplate, jsonText, memberAt, writeTemplate } from './template.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-rules-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

test('a place outside a string is the JSON of its value, inside a string its text', () => {
  const values: Record<string, string> = {
    'params.a': '42.0',
    'params.text': '"say \\"hi\\""',
    'params.big': '9223372036854775807',
    'params.object': '{"x":[1,"y"]}',
  };
  const f = (source: string, expected: string) => {
    const written = writeTemplate(compileTemplate(source), ({ root, rest }) => values[`${root}.${rest}`]);
    expect(written).toBe(expected);
    JSON.parse(written);
  };
  f('{"a": ${params.a}}', '{"a": 42.0}');
  f('${params.big}', '9223372036854775807');
  f('"is ${params.a} and ${params.text}"', '"is 42.0 and say \\"hi\\""');
  f('{"t": ${params.text}}', '{"t": "say \\"hi\\""}');
  f('[${params.object}, "${params.object}"]', '[{"x":[1,"y"]}, "{\\"x\\":[1,\\"y\\"]}"]');
  f('{"gone": ${params.none}, "text": "<${params.none}>"}', '{"gone": null, "text": "<>"}');
  f('{"quote \\" ${params.a}": 1.50}', '{"quote \\" 42.0": 1.50}');
  f('"costs $5"', '"costs $5"');
});

test('members are found by name and by number', () => {
  const json = readJson(Buffer.from('{"a":{"b":[10,{"c":7.0}]},"0":1}'));
  const f = (path: string, expected: string | undefined) => expect(jsonText(memberAt(json, path))).toBe(expected);
  f('a.b.1.c', '7.0');
  f('a.b.0', '10');
  f('0', '1');
  f('', '{"a":{"b":[10,{"c":7.0}]},"0":1}');
  f('a.b.c', undefined);
  f('a.b.9', undefined);
  f('a.b.0.x', undefined);
});

test('the first matching rule is used; * is any string, null is no method', () => {
  const rules = load(`rules:
  - { method: get*, answer: '1' }
  - { method: get.Time, answer: '2' }
  - { method: "*", answer: '3' }
  - { method: null, answer: '4' }`);
  const answerTo = (method: string | null) => rules.find((rule) => rule.matches(method))?.answer.texts[0];
  expect(['getTime', 'set', 'get', ''].map(answerTo)).toEqual(['1', '3', '1', '3']);
  expect(answerTo(null)).toBe('4');
});

test('the file that is delivered is empty and sound', () => {
  expect(readRules('')).toEqual([]);
});

test('what is wrong is one line that names file and rule', () => {
  const f = (text: string, expected: string) => {
    let message = 'taken';
    try {
      load(text);
    } catch (error) {
      message = messageOf(error);
    }
    expect(message).toContain(expected);
    expect(message).not.toContain('\n');
    expect(message).toContain(directory);
  };
  f('rules: 5', 'rules must be a list');
  f('rule: []', 'unknown key rule');
  f('rules: [{ method: a }]', 'rule 1: answer must be JSON text in quotes');
  f('rules: [{ method: a, answer: "{" }]', 'rule 1: answer: it is not JSON');
  f('rules: [{ method: a, answer: "1" }, { method: 5, answer: "1" }]', 'rule 2: method must be a string, or null');
  f('rules: [{ method: a, answer: "${foo.bar}" }]', 'rule 1: answer: ${foo.bar} is unknown: it must begin with now');
  f('rules: [{ method: a, answer: "${shared}" }]', '${shared} names no key');
  f('rules: [{ method: a, answer: "${now" }]', 'has no closing brace');
  f('rules: [{ method: a, answer: "1", setShared: "[1]" }]', 'setShared must be a JSON object');
  f('rules: [{ method: a, answer: "1", then: "2" }]', 'unknown key then');
  f('rules: [', 'is not valid YAML');
});

test('a named file that is missing is reported', () => {
  expect(() => readRules(join(directory, 'none.yaml'))).toThrow(/^The rules file .*none\.yaml cannot be read/);
});

function load(text: string) {
  const path = join(directory, 'rules.yaml');
  writeFileSync(path, text);
  return readRules(path).map(compileRule);
}

test('a call without a method is refused at once, unless a rule takes such calls', async () => {
  const open = (method: string | null) => {
    const rules = [compileRule({ method, answer: '"answered"', setShared: null })];
    return new Calls({ rules, metrics: new Metrics(), timeoutMs: 60_000 } as unknown as CallsDeps);
  };
  const device = { number: 1, id: 'd', name: 'd', tenantId: 't', customerId: null };
  const gone = new AbortController().signal;
  for (const text of ['{"params":1}', '{"method":7}', '[]', 'null']) {
    const document = readJson(Buffer.from(text));
    expect(open('*').refusal(device, document)).toMatchObject({ status: 400, reason: 'rpc_method' });
    await expect(open('*').answer(device, document, gone)).rejects.toMatchObject({ status: 400, reason: 'rpc_method' });
    expect(open(null).refusal(device, document)).toBeUndefined();
  }
  expect(open('no').refusal(device, readJson(Buffer.from('{"method":"waits"}')))).toBeUndefined();
});

test('the devices of a tenant leave a place for the call of another tenant', async () => {
  const deps = { rules: [], metrics: new Metrics(), timeoutMs: 60_000, openMax: 10 };
  const calls = new Calls(deps as unknown as CallsDeps);
  const gone = new AbortController();
  const call = (number: number, tenantId: string) =>
    calls.answer(
      { number, id: 'd', name: 'd', tenantId, customerId: null },
      readJson(Buffer.from('{"method":"waits"}')),
      gone.signal,
    );
  const held = Array.from({ length: 9 }, (_, number) => call(number, 'a'));
  await expect(call(9, 'a')).rejects.toMatchObject({ status: 429, reason: 'client_rpc_share' });
  held.push(call(10, 'b'));
  await expect(call(11, 'c')).rejects.toMatchObject({ status: 503, reason: 'client_rpc_full' });
  gone.abort();
  await Promise.all(held);
  gone.abort();
  expect(calls.refusal({ number: 1, tenantId: 'a', customerId: null }, readJson(Buffer.from('{"method":"m"}')))).toBe(
    undefined,
  );
});
