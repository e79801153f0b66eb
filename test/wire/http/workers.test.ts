import { expect, test } from 'vitest';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { withWorkers, workerOf } from '../../harness/workers.ts';

test('an answer, an acknowledgement and a refusal name the worker of the connection', () =>
  withWorkers(sharedEngine().address.port, async (connections) => {
    const { token } = await newDevice();
    for (const [worker, connection] of connections.entries()) {
      const answers = [
        await connection.ask({ path: `/api/v1/${token}/telemetry`, body: '{"a":1}' }),
        await connection.ask({ path: '/api/v1/unknown/telemetry', body: '{"a":1}' }),
        await connection.ask({ method: 'GET', path: `/api/v1/${token}/telemetry` }),
        await connection.ask({ method: 'GET', path: '/nothing' }),
      ];
      expect(answers.map(({ status }) => status)).toEqual([200, 401, 405, 404]);
      expect(answers.map(workerOf)).toEqual([worker, worker, worker, worker]);
    }
  }));
