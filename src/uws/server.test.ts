import { expect, test } from 'vitest';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics.ts';
import { HttpServer } from './server.ts';

test('a route appears in the metrics with its first call', async () => {
  const metrics = new Metrics();
  const sizes = { bodyBytesMax: 1024, bodyBytesInFlightMax: 4096, connectionsMax: 100 };
  const server = new HttpServer({ log: createLog('error', 'test'), metrics, ...sizes, worker: '' });
  server.route('GET', '/called', async () => ({ status: 200 }));
  server.route('GET', '/never', async () => ({ status: 200 }));
  server.seal();
  try {
    const port = await server.listen('127.0.0.1', 0);
    await fetch(`http://127.0.0.1:${port}/called`);
    const labels = metrics.snapshot().map((sample) => sample.labels);
    expect(labels).toContain('{route="GET /called",code="200"}');
    expect(labels.filter((label) => label.includes('/never'))).toEqual([]);
  } finally {
    server.close();
  }
});
