/**
 * The REST API by its own document: Schemathesis sends valid and invalid calls as system administrator, tenant
 * administrator and customer user, each signed in with a JWT and with an API key. An answer whose status, content type
 * or body is not in the document is a finding. So is a 5xx, because the document names only those that are allowed.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, root } from '../test/harness/engine.ts';
import { type FuzzOptions, type Report, say } from './run.ts';
import { schemathesisCommand } from './schemathesis.ts';
import { makeWorld, type Role, roles, type SignIn, signIns, type World } from './world.ts';

/** Not called: it ends the session of its caller. The hooks give other calls that would do so another id. */
const endsTheCaller = /^\/api\/auth\/(logout|changePassword)$/;
const checks = ['status_code_conformance', 'content_type_conformance', 'response_schema_conformance'];
const requestSecondsMax = 30;
/** Long runs try each constraint of the document in turn as well, with the caller that may do most. */
const systematicExamples = 10;
/** Waits of devices and commands are short: the fuzzer has no device that answers. */
export const shortWaits = {
  MIN_SERVER_SIDE_RPC_TIMEOUT: '20',
  DEFAULT_SERVER_SIDE_RPC_TIMEOUT: '20',
  CLIENT_SIDE_RPC_TIMEOUT: '20',
  HTTP_REQUEST_TIMEOUT: '20',
  HTTP_MAX_REQUEST_TIMEOUT: '50',
};

interface Answers {
  statuses: Record<string, number>;
  /** Operations and their longest time. */
  slowest: [operation: string, seconds: number][];
}

interface Outcome {
  cases: number;
  failures: number;
  seconds: number;
  answers: Answers;
  /** What Schemathesis prints. */
  output: string;
  isSignedIn: boolean;
}

export async function fuzzRest(engine: Engine, { seed, cases }: FuzzOptions): Promise<Report> {
  const startedAt = performance.now();
  const command = await schemathesisCommand();
  const directory = mkdtempSync(join(tmpdir(), 'millrace-fuzz-'));
  const findings: string[] = [];
  let sent = 0;
  try {
    const pids = engine.workers().sort().join();
    const operations = await operationsByRole(engine);
    const examples = Math.ceil(cases / roles.reduce((sum, role) => sum + operations[role].length, 0));
    for (const signIn of signIns) {
      for (const role of roles) {
        const isSystematic = role === 'TENANT_ADMIN' && examples >= systematicExamples;
        const phases = isSystematic ? 'coverage,fuzzing' : 'fuzzing';
        const run = { command, directory, role, signIn, seed, examples, phases, operations: operations[role] };
        const outcome = await runAs(engine, run);
        sent += outcome.cases;
        say(line(run, outcome));
        if (!outcome.isSignedIn) findings.push(`${role}, ${signIn}: the caller cannot sign in any more`);
        if (outcome.failures > 0) {
          findings.push(`${role}, ${signIn}; all of it is in ${directory}:\n${failuresIn(outcome.output)}`);
        }
      }
    }
    if (engine.workers().sort().join() !== pids) findings.push(`a worker ended:\n${engine.tail()}`);
  } finally {
    if (findings.length === 0) rmSync(directory, { recursive: true, force: true });
  }
  return { summary: `${sent} cases in ${((performance.now() - startedAt) / 1_000).toFixed(0)} s`, findings };
}

interface Run {
  command: string[];
  directory: string;
  role: Role;
  signIn: SignIn;
  seed: number;
  /** Examples for each operation. */
  examples: number;
  phases: string;
  /** Ids of the operations that are called. */
  operations: string[];
}

async function runAs(engine: Engine, run: Run): Promise<Outcome> {
  const { command, directory, role, signIn, seed } = run;
  const world = await makeWorld(engine.api, role, signIn);
  const name = `${role}-${signIn.replace(' ', '-')}`;
  const file = (kind: string) => join(directory, `${name}.${kind}`);
  writeFileSync(file('world.json'), JSON.stringify(world));
  writeFileSync(file('toml'), configuration(world));
  const parameters = [
    ...['--config-file', file('toml'), 'run', documentOf(engine), '--seed', String(seed), '--checks', checks.join(',')],
    ...['--phases', run.phases, '--max-examples', String(run.examples)],
    ...run.operations.flatMap((id) => ['--include-operation-id', id]),
    ...['--output-sanitize', 'false', '--no-color', '--report', 'json', '--report-json-path', file('json')],
  ];
  const startedAt = performance.now();
  const output = createWriteStream(file('txt'));
  const child = spawn(command[0]!, [...command.slice(1), ...parameters], {
    cwd: directory,
    env: { ...process.env, FUZZ_WORLD: file('world.json'), FUZZ_ANSWERS: file('answers.json') },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const end = () => child.kill();
  process.once('exit', end);
  child.stdout.pipe(output, { end: false });
  child.stderr.pipe(output, { end: false });
  await once(child, 'close');
  process.off('exit', end);
  output.end();
  await once(output, 'finish');

  const text = readFileSync(file('txt'), 'utf8');
  if (child.exitCode !== 0 && child.exitCode !== 1)
    throw new Error(`schemathesis ended with ${child.exitCode}:\n${text}`);
  const { test_cases, errors } = JSON.parse(readFileSync(file('json'), 'utf8')) as {
    test_cases: { generated: number; unique_failures: number };
    errors: { count: number }[];
  };
  const me = await fetch(`${engine.api.http}/api/auth/user`, { headers: { 'x-authorization': world.authorization } });
  return {
    cases: test_cases.generated,
    failures: test_cases.unique_failures + errors.reduce((sum, { count }) => sum + count, 0),
    seconds: (performance.now() - startedAt) / 1_000,
    answers: JSON.parse(readFileSync(file('answers.json'), 'utf8')) as Answers,
    output: text,
    isSignedIn: me.status === 200,
  };
}

/** Ids and tokens that exist for half of the parameters that name some: the code after those checks runs, too. */
function configuration(world: World): string {
  const list = (values: string[]) => JSON.stringify(values);
  return `hooks = ${JSON.stringify(join(root, 'fuzz', 'rest-hooks.py'))}
headers = { X-Authorization = ${JSON.stringify(world.authorization)} }
continue-on-failure = true
request-timeout = ${requestSecondsMax}

[generation]
database = "none"

[dictionaries]
tokens = { values = ${list(world.deviceTokens)} }
names = { values = ${list(world.deviceNames)} }
types = { values = ["DEVICE"] }
scopes = { values = ["SERVER_SCOPE", "SHARED_SCOPE"] }

[parameters]
"path.deviceToken" = { dictionary = "tokens", probability = 0.7 }
"path.deviceName" = { dictionary = "names", probability = 0.5 }
"path.entityType" = { dictionary = "types", probability = 0.5 }
"path.scope" = { dictionary = "scopes", probability = 0.5 }
`;
}

function documentOf({ api }: Engine): string {
  return `${api.http}/v3/api-docs/thingsboard`;
}

/** Ids of the operations that are open to each role. Those without a sign-in are called once, beside a tenant's. */
async function operationsByRole(engine: Engine): Promise<Record<Role, string[]>> {
  const document = (await (await fetch(documentOf(engine))).json()) as {
    paths: Record<string, Record<string, { operationId: string; description: string; security: object[] }>>;
  };
  // Schemathesis calls one address: not that of reports, which the document names at their paths.
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    endsTheCaller.test(path) || 'servers' in methods ? [] : Object.values(methods),
  );
  const openTo = (role: Role) =>
    operations
      .filter(({ description, security }) =>
        security.length === 0 ? role === 'TENANT_ADMIN' : description.match(/Open to: ([^.]*)\./)?.[1]?.includes(role),
      )
      .map(({ operationId }) => operationId);
  return Object.fromEntries(roles.map((role) => [role, openTo(role)])) as Record<Role, string[]>;
}

function line({ role, signIn, operations }: Run, { cases, failures, seconds, answers }: Outcome): string {
  const sent = `${cases} cases of ${operations.length} operations in ${seconds.toFixed(0)} s`;
  const statuses = Object.entries(answers.statuses).map(([status, count]) => `${status} × ${count}`);
  const slowest = answers.slowest.map(([operation, longest]) => `${operation} ${longest.toFixed(2)} s`);
  return `${role}, ${signIn}: ${sent}, ${failures} findings\n  ${statuses.join(', ')}\n  slowest: ${slowest.join(', ')}`;
}

/** Schemathesis sends keys by the thousand. */
const longLine = /^(.{2000}).+$/gm;

/** The part of Schemathesis' output that describes failures, each with a line of curl. */
function failuresIn(output: string): string {
  const start = output.search(/^=+ (ERRORS|FAILURES) =+$/m);
  const end = output.search(/^=+ (WARNINGS|SUMMARY) =+$/m);
  const failures = start < 0 ? output : output.slice(start, end < start ? undefined : end);
  return failures.replace(longLine, '$1…');
}
