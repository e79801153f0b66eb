/**
 * Questions about refused rows from other workers: malformed ones, too many at once, and a disk that cannot be read.
 */
import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import { UnreadMessage } from '../bus/messages.ts';
import { RefusedPoints } from './refused-points.ts';

const worker = 'another worker';

async function opened(rowsOf: (order: bigint) => Promise<{ reason: string; payload: Buffer }[]>) {
  const handlers = new Map<string, Handler>();
  const answers: { kind: string; id: number; answer: { isOwner: boolean } }[] = [];
  const bus: Bus = {
    connected: true,
    publish: (channel, payload) => {
      if (channel === `refused-points-${worker}`) answers.push(JSON.parse(payload.toString()));
    },
    subscribe: async (channel, handler) => {
      handlers.set(channel, handler);
      return () => {};
    },
    onReconnect: () => {},
    close: async () => {},
  };
  const lines: string[] = [];
  const log = { debug() {}, info() {}, error() {}, warn: (line: string) => void lines.push(line) };
  const journals = () => [{ writer: 1, suspects: undefined, quarantine: { rowsOf } }];
  const refused = new RefusedPoints({ bus, log, journals });
  await refused.start();
  const ask = (id: number, question: unknown) => {
    const packet = JSON.stringify({ kind: 'ask', from: worker, id, question });
    return handlers.get('refused-points')!(Buffer.from(packet), 'refused-points');
  };
  return { ask, answers, lines, refused };
}

const point = { device: 1, key: 'k', ts: 1, seq: 0 };

test('what is no question is not answered, and no error of it goes unhandled', async () => {
  let reads = 0;
  const { ask, answers } = await opened(async () => {
    reads += 1;
    return [];
  });
  const points = Array.from({ length: limits.receiptPointsMax + 1 }, () => point);
  const strange = ['', '-1', 'x', '1.5', '0x10', ' 1', '9'.repeat(20)].map((order) => ({ order, points: [point] }));
  for (const question of [...strange, { order: '1', points }, { order: 1, points: [point] }, null]) {
    expect(await ask(1, question), JSON.stringify(question).slice(0, 60)).toBeUndefined();
  }
  expect(reads).toBe(0);
  expect(() => ask(Number.NaN, { order: '1', points: [point] })).toThrow(UnreadMessage);
  await ask(1, { order: '1', points: [point] });
  expect(reads).toBe(1);
  expect(answers).toMatchObject([{ kind: 'answer', id: 1, answer: { isOwner: true } }]);
});

test('few questions are answered at once, and those beyond the queue as by a worker that knows nothing', async () => {
  let running = 0;
  let runningMax = 0;
  const open: (() => void)[] = [];
  const { ask, answers } = await opened(async () => {
    running += 1;
    runningMax = Math.max(runningMax, running);
    await new Promise<void>((resolve) => open.push(resolve));
    running -= 1;
    return [];
  });
  const room = limits.refusedAnswersAtOnceMax + limits.refusedAnswersWaitingMax;
  const asked = Array.from({ length: room + 50 }, (_, id) =>
    ask(id, { order: '1', points: [{ ...point, device: id }] }),
  );
  await turn();
  expect(answers.filter(({ answer }) => !answer.isOwner)).toHaveLength(50);
  while (answers.length < asked.length) {
    for (const end of open.splice(0)) end();
    await turn();
  }
  await Promise.all(asked);
  expect(runningMax).toBe(limits.refusedAnswersAtOnceMax);
  expect(answers.filter(({ answer }) => answer.isOwner)).toHaveLength(room);
});

test('rows that cannot be read are one line in the log, not one for each question', async () => {
  const { ask, answers, lines } = await opened(async () => {
    throw new Error('EIO');
  });
  for (let id = 0; id < 20; id += 1) await ask(id, { order: '1', points: [point] });
  expect(answers.every(({ answer }) => !answer.isOwner)).toBe(true);
  expect(lines).toEqual(['quarantine_unreadable']);
});
