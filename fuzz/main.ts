/**
 * `npm run fuzz` lists the fuzzers; `npm run fuzz -- rest` runs one against an engine of its own. `--seed N` repeats a
 * run, `--cases N` makes it longer or shorter. The exit code is 1 when something was found.
 */
import { parseArgs } from 'node:util';
import { type Engine, startEngine } from '../test/harness/engine.ts';
import { fuzzHttp } from './http.ts';
import { fuzzMqtt } from './mqtt.ts';
import { fuzzRest, shortWaits } from './rest.ts';
import { type FuzzOptions, type Report, say } from './run.ts';

interface Fuzzer {
  about: string;
  /** Cases without `--cases`. */
  cases: number;
  /** Settings of the engine. */
  env: Record<string, string>;
  run(engine: Engine, options: FuzzOptions): Promise<Report>;
}

const fuzzers: Record<string, Fuzzer> = {
  rest: {
    about: 'the REST API by its OpenAPI document, with Schemathesis; cases for each kind of sign-in',
    cases: 10_000,
    env: shortWaits,
    run: fuzzRest,
  },
  mqtt: { about: 'broken packets over MQTT', cases: 20_000, env: {}, run: fuzzMqtt },
  http: { about: 'broken requests over HTTP', cases: 20_000, env: shortWaits, run: fuzzHttp },
};

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    options: { seed: { type: 'string' }, cases: { type: 'string' } },
    allowPositionals: true,
  });
  const [name = ''] = positionals;
  const fuzzer = fuzzers[name];
  if (!fuzzer) {
    say('npm run fuzz -- <fuzzer> [--seed N] [--cases N]\n');
    for (const [key, { about, cases }] of Object.entries(fuzzers)) say(`  ${key.padEnd(6)}${about} (${cases})`);
    return name === '' ? 0 : 2;
  }
  const seed = numberOf('seed', values.seed) ?? Math.floor(Math.random() * 1_000_000);
  const cases = numberOf('cases', values.cases) ?? fuzzer.cases;
  say(
    `${name}: ${fuzzer.about}\n${cases} cases, seed ${seed}: npm run fuzz -- ${name} --seed ${seed} --cases ${cases}\n`,
  );
  const engine = await startEngine({ workers: 2, env: { LOG_LEVEL: 'warn', ...fuzzer.env } });
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => engine.destroy().finally(() => process.exit(1)));
  }
  try {
    const options = { seed, cases, servedMsMax: 1_000, closedMsMax: 30_000, isPatient: true };
    const { summary, findings } = await fuzzer.run(engine, options);
    say(`\n${summary}`);
    for (const finding of findings) say(`\n${finding}`);
    say(findings.length === 0 ? '\nNothing was found.' : `\n${findings.length} findings.`);
    return findings.length === 0 ? 0 : 1;
  } finally {
    await engine.destroy();
  }
}

function numberOf(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const number = Number(text);
  if (!Number.isSafeInteger(number) || number < 0) throw new Error(`--${name} must be a whole number from 0`);
  return number;
}

process.exitCode = await main();
