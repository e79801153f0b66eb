/** The words of a refusal, by the answers of the servers. Tests in test/contract and test/long have real servers. */
import { JetStreamApiError } from '@nats-io/jetstream';
import { expect, test } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { loadConfig } from '../base/settings/config.ts';
import { live } from '../journal/journal.ts';
import type { StreamClient } from './stream-client.ts';
import { StreamWriter } from './stream-writer.ts';

/** Returns the messages of the refusals, of a commit and of later messages, when publishing fails with this error. */
async function refusals(error: Error): Promise<(string | undefined)[]> {
  const link = { publish: () => Promise.reject(error), payloadBytesMax: 0, formats: [2, 2] };
  const client = { link, failureOf: () => undefined, silence: undefined } as unknown as StreamClient;
  const settings = { ...loadConfig({}).stream, ackMsMax: 500 };
  const local = { append: () => Promise.reject(new Error('not used')) };
  const log = createLog('error', 'test');
  const writer = new StreamWriter({ client, settings, clock: systemClock, log, metrics: new Metrics(), local });
  const frame = { lane: live, order: 1n, rows: 1, parts: [Buffer.from('a')], device: 1 };
  const commit = await writer.append([frame]).catch((fault: Error) => fault.message);
  writer.close();
  return [commit as string, writer.refusal()?.message];
}

const answerOf = (err_code: number, description: string) => new JetStreamApiError({ code: 503, err_code, description });

const notEnabled = Object.assign(new Error('jetstream is not enabled'), { name: 'JetStreamNotEnabled' });

test.each([
  ['no answer', new Error('timeout'), /\(no majority of its servers answers: /],
  ['no leader', answerOf(10_008, 'JetStream system temporarily unavailable'), /\(no majority of its servers/],
  ['no listener', notEnabled, /JetStream off, as after a full disk, or the account of STREAM_USER/],
  ['another answer', answerOf(10_074, 'replicas > 1 not supported'), /\(replicas > 1 not supported\)/],
])('%s is said in words, of the commit and of later messages', async (_what, error, words) => {
  const [commit, later] = await refusals(error);
  expect(commit).toMatch(words);
  expect(later).toBe(commit);
});
