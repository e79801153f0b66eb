import { expect, test } from 'vitest';
import type { Principal } from '../auth/roles.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { SlicedBody } from '../uws/slices.ts';
import { LongAnswers, type LongText } from './long-answer.ts';

const metrics = new Metrics();
const megabyte = 'x'.repeat(1024 * 1024);
const caps = (all: number, tenant: number, customer: number, one: number) => ({
  longAnswersBytesMax: all * megabyte.length,
  longAnswersTenantBytesMax: tenant * megabyte.length,
  longAnswersCustomerBytesMax: customer * megabyte.length,
  longAnswerBytesMax: one * megabyte.length,
});
const answers = new LongAnswers(metrics, caps(12, 8, 4, 4));
const held = () => metrics.snapshot().find(({ name }) => name === 'rest_answer_bytes')!.value;
const caller = (tenantId: string, customerId: string | null = null) => ({ tenantId, customerId }) as Principal;
const megabytes = (count: number) => async (text: LongText) => {
  for (let i = 0; i < count; i += 1) text.add(megabyte);
};

test('a short answer holds nothing, a long one is sent in slices and held until they are taken', async () => {
  expect((await answers.json(caller('t'), async (text) => text.add('{}'))).body).toBe('{}');
  const short = await answers.json(caller('t'), (text) => text.addAll(['x'.repeat(70_000), 'é']));
  expect(String(short.body)).toBe(`${'x'.repeat(70_000)}é`);
  expect(held()).toBe(0);
  const { body } = await answers.json(caller('t'), megabytes(3));
  const { bytes, slice, release } = body as SlicedBody;
  expect([bytes, held()]).toEqual([3 * megabyte.length, 3 * megabyte.length]);
  let at = 0;
  while (at < bytes) {
    const piece = await slice(at);
    expect(piece.length).toBeLessThanOrEqual(256 * 1024);
    at += piece.length;
  }
  expect(held()).toBe(megabyte.length);
  release!();
  expect(held()).toBe(0);
});

test('an answer has a cap, callers have shares, and a failed answer is released', async () => {
  await expect(answers.json(caller('t'), megabytes(5))).rejects.toMatchObject({ reason: 'answer_bytes' });
  expect(held()).toBe(0);
  const refusal = { status: 503, reason: 'answers_unsent' };
  const bodies = [(await answers.json(caller('t', 'c'), megabytes(4))).body as SlicedBody];
  await expect(answers.json(caller('t', 'c'), megabytes(1))).rejects.toMatchObject(refusal);
  bodies.push((await answers.json(caller('t'), megabytes(4))).body as SlicedBody);
  await expect(answers.json(caller('t', 'd'), megabytes(1))).rejects.toMatchObject(refusal);
  bodies.push((await answers.json(caller('u'), megabytes(4))).body as SlicedBody);
  for (const { release } of bodies) release!();
  expect(held()).toBe(0);
});
