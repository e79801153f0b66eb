/**
 * A second opinion on latency: autocannon at a fixed rate, in a process of its own. Its requests carry no `ts`, so the
 * server gives each its own time; it cannot change a body per request cheaply, and measures itself near saturation.
 */
import { execFile } from 'node:child_process';
import { createRequire } from 'node:module';
import { promisify } from 'node:util';

interface AutocannonResult {
  rate: number;
  requestsPerSecond: number;
  p50Ms: number;
  p99Ms: number;
  non2xx: number;
  errors: number;
}

const body = '{"temperature":21.53,"humidity":48.2,"pressure":1013.25,"battery":87}';

export async function runAutocannon(
  port: number,
  token: string,
  { connections, seconds, rate }: { connections: number; seconds: number; rate: number },
): Promise<AutocannonResult> {
  const program = createRequire(import.meta.url).resolve('autocannon');
  const options = ['--json', '-c', connections, '-d', seconds, '-R', rate, '-m', 'POST', '-b', body];
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [program, ...options.map(String), `http://127.0.0.1:${port}/api/v1/${token}/telemetry`],
    { timeout: (seconds + 30) * 1000, maxBuffer: 16 * 1024 * 1024 },
  );
  const result = JSON.parse(stdout) as {
    latency: { p50: number; p99: number };
    requests: { average: number };
    non2xx: number;
    errors: number;
  };
  return {
    rate,
    requestsPerSecond: result.requests.average,
    p50Ms: result.latency.p50,
    p99Ms: result.latency.p99,
    non2xx: result.non2xx,
    errors: result.errors,
  };
}
