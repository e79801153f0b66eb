/**
 * A large message of a gateway: the number of times that it is decoded, the rows that are held while its children are
 * connected, and the devices that count as active.
 */
import { expect, test } from 'vitest';
import { unlimitedAdmission } from '../../../test/harness/unlimited.ts';
import { systemClock } from '../../base/clock.ts';
import { type Fault, tooLarge } from '../../base/errors.ts';
import type { GatewayDecodeThread } from '../../gateway/decode-thread.ts';
import type { DecodedByName } from '../../gateway/decode-worker.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import { JournalWait } from '../../gateway/journal-wait.ts';
import type { Ingest } from '../../ingest/accept.ts';
import type { Publish } from '../session/operation.ts';
import { takeLargeTelemetry } from './gateway-large-telemetry.ts';

/**
 * Handles a message with one child; returns the number of decodings, the rows held during the connect, the devices that
 * were active, and the reasons of the refusal.
 */
async function take(isKnown: boolean, refusal?: Fault) {
  const decoded: DecodedByName[] = [];
  let heldRows = 0;
  let stored = 0;
  let connected = isKnown;
  const none = new Uint8Array();
  const columns = { count: 1, keyPart: none, kind: none, num: none };
  const spans = { device: [0], ts: [1], count: 1, serverTimes: 0 };
  const gatewayThread = {
    decode: async () => {
      const chunks = [{ columns, spans, converted: [] }] as unknown as DecodedByName['chunks'];
      decoded.push({ chunks, names: ['pump'], points: [1], keys: [[]], refused: [] });
      return decoded.at(-1)!;
    },
  } as unknown as GatewayDecodeThread;
  const gateway = {
    device: { number: 1 },
    journalWait: new JournalWait(() => 0),
    child: () => (connected ? { device: { number: 7 } } : undefined),
    connect: async () => {
      heldRows = decoded[0]!.chunks.length;
      connected = true;
      return new Map();
    },
  } as unknown as Gateway;
  const ingest = {
    acceptDecoded: async (chunks: unknown[]) => {
      if (refusal) throw refusal;
      stored += chunks.length;
    },
  } as unknown as Ingest;
  const active: number[] = [];
  const admission = Object.assign(unlimitedAdmission(), {
    touch: ({ number }: { number: number }) => void active.push(number),
  });
  const refused: string[] = [];
  const publish = { acknowledge() {}, refuse: ({ reason }: Fault) => refused.push(reason) } as unknown as Publish;
  await takeLargeTelemetry({ ingest, admission, gatewayThread, clock: systemClock }, gateway, publish, Buffer.alloc(9));
  expect(stored).toBe(refused.length === 0 ? 1 : 0);
  return { passes: decoded.length, heldRows, active, refused };
}

test('a message of known children is decoded once', async () => {
  expect(await take(true)).toEqual({ passes: 1, heldRows: 1, active: [1, 7], refused: [] });
});

test('a message with a new child holds no rows while the child is made, and is decoded again', async () => {
  expect(await take(false)).toEqual({ passes: 2, heldRows: 0, active: [1, 7], refused: [] });
});

test('a message that ingest refuses is no activity, neither of the gateway nor of a child', async () => {
  const refusal = tooLarge('too_many_points', 'Too many.');
  expect(await take(true, refusal)).toMatchObject({ active: [], refused: ['too_many_points'] });
});
