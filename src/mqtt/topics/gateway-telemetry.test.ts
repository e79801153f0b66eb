/**
 * Telemetry of a gateway whose devices had to be looked up: when the journal refuses after that, the messages wait for
 * the journal and keep their order.
 */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { unlimitedAdmission } from '../../../test/harness/unlimited.ts';
import { systemClock } from '../../base/clock.ts';
import { type Fault, unavailable } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { GatewayDecodeThread } from '../../gateway/decode-thread.ts';
import { JournalWait } from '../../gateway/journal-wait.ts';
import type { GatewayDecoder } from '../../gateway/telemetry.ts';
import type { Ingest } from '../../ingest/accept.ts';
import { strictly } from '../../value/lenient.ts';
import type { Publish } from '../session/operation.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import { gatewayTelemetryTopics } from './gateway-telemetry.ts';

let refusal: Fault | undefined;
let taken: string[];
let answers: string[];
let heldBytes: number;
let journalWait: JournalWait;
/** Operations of the gateway, one after the other. */
let running: Promise<unknown>;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'performance'] });
  journalWait = new JournalWait(() => performance.now());
  refusal = unavailable('journal_slow', 'Too slow.');
  taken = [];
  answers = [];
  heldBytes = 0;
  running = Promise.resolve();
});

afterEach(() => {
  vi.useRealTimers();
});

function send(text: string): void {
  const ingest = {
    accept: (_: unknown, body: Buffer, __: unknown, waiter: { acknowledge(): void }) => {
      if (refusal) throw refusal;
      taken.push(body.toString());
      waiter.acknowledge();
    },
  } as unknown as Ingest;
  const gateway = {
    isBusy: true,
    device: {},
    journalWait,
    run: (_: unknown, operation: (refused: ReadonlyMap<string, Fault>) => unknown) => {
      running = running.then(() => operation(new Map()));
    },
  };
  const gateways = {
    keep: ({ payload }: { payload: Buffer }) => {
      heldBytes += payload.length;
      return { payload: Buffer.from(payload), release: () => (heldBytes -= payload.length) };
    },
  };
  const sessions = { gateways, of: () => gateway } as unknown as GatewaySessions;
  const admission = unlimitedAdmission();
  const gatewayDecoder = { decode: () => 0 } as unknown as GatewayDecoder;
  const gatewayThread = {} as GatewayDecodeThread;
  const deps = { ingest, admission, gatewayDecoder, gatewayThread, readBody: strictly, clock: systemClock };
  const operation = gatewayTelemetryTopics(sessions, deps).exact!['v1/gateway/telemetry']!;
  const publish = {
    payload: Buffer.from(text),
    session: {},
    acknowledge: () => answers.push(`${text} stored`),
    refuse: (fault: Fault) => answers.push(`${text} ${fault.reason}`),
  };
  operation(publish as unknown as Publish, '');
}

test('is taken when the journal accepts again, in the order in which it came', async () => {
  send('{"A":[{"a":1}]}');
  send('{"A":[{"a":2}]}');
  await vi.advanceTimersByTimeAsync(1_000);
  expect(answers).toEqual([]);
  refusal = undefined;
  await vi.advanceTimersByTimeAsync(limits.mqttJournalCheckMs);
  await running;
  expect(taken).toEqual(['{"A":[{"a":1}]}', '{"A":[{"a":2}]}']);
  expect(answers).toEqual(['{"A":[{"a":1}]} stored', '{"A":[{"a":2}]} stored']);
  expect(heldBytes).toBe(0);
});

test('is refused after a wait that all messages share, and waits again when the journal has accepted one', async () => {
  send('{"A":[{"a":1}]}');
  send('{"A":[{"a":2}]}');
  await vi.advanceTimersByTimeAsync(limits.mqttPausedMsMax + 100);
  await running;
  expect(answers.splice(0)).toEqual(['{"A":[{"a":1}]} journal_slow', '{"A":[{"a":2}]} journal_slow']);
  expect(heldBytes).toBe(0);
  const refusedBefore = refusal;
  refusal = undefined;
  send('{"A":[{"a":3}]}');
  await running;
  refusal = refusedBefore;
  send('{"A":[{"a":4}]}');
  await vi.advanceTimersByTimeAsync(limits.mqttPausedMsMax - 100);
  expect(answers).toEqual(['{"A":[{"a":3}]} stored']);
  await vi.advanceTimersByTimeAsync(200);
  expect(answers.at(-1)).toBe('{"A":[{"a":4}]} journal_slow');
});
