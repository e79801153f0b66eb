/**
 * A short run of `npm run fuzz -- rest`: Schemathesis calls the API by its document. FUZZ_SEED repeats a failure.
 * Without PyPI the test fails with a line that says so; `test/wire/rest/openapi.test.ts` needs nothing of Python.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fuzzRest, shortWaits } from '../../fuzz/rest.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

const seed = Number(process.env['FUZZ_SEED'] ?? 4);

let engine: Engine;
beforeAll(async () => {
  engine = await startEngine({ workers: 2, env: shortWaits });
});
afterAll(() => engine?.destroy());

// Never retried: another seed would hide a finding.
test('every answer is one that the OpenAPI document names', { retry: 0 }, async () => {
  const options = { seed, cases: 60, servedMsMax: 10_000, closedMsMax: 10_000, isPatient: false };
  const { summary, findings } = await fuzzRest(engine, options);
  expect(findings.join('\n'), `seed ${seed}: ${summary}`).toBe('');
});
