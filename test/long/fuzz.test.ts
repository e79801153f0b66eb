/**
 * A short run of the fuzzers of the readers (`npm run fuzz -- mqtt`, `-- http`) against one engine. FUZZ_SEED
 * chooses other packets and requests.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fuzzHttp } from '../../fuzz/http.ts';
import { fuzzMqtt } from '../../fuzz/mqtt.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

const seed = Number(process.env['FUZZ_SEED'] ?? 7);
// Deadlines leave room for a busy machine: the test proves only that they exist.
const options = { seed, cases: 250, servedMsMax: 10_000, closedMsMax: 10_000, isPatient: false };

let engine: Engine;
beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
});
afterAll(() => engine?.destroy());

// Never retried: another seed would hide a finding.
test('broken MQTT packets end their own connections and nothing else', { retry: 0 }, async () => {
  const { summary, findings } = await fuzzMqtt(engine, options);
  expect(findings, `seed ${seed}: ${summary}`).toEqual([]);
});

test('broken HTTP requests are refused, store nothing and harm no other client', { retry: 0 }, async () => {
  const { summary, findings } = await fuzzHttp(engine, options);
  expect(findings, `seed ${seed}: ${summary}`).toEqual([]);
});
