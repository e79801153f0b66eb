import { expect, it } from 'vitest';
import { Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Downloads } from '../../ota/downloads.ts';
import type { Publish } from '../session/operation.ts';
import type { Confirm, FileOutcome, Session } from '../session/session.ts';
import { type FirmwareTopicsDeps, firmwareTopics } from './firmware.ts';

const fileBytes = limits.otaMessageBytesMax;

/** A client that receives whole files and acknowledges them only on request. */
function client(dataSize = fileBytes, sendFile: (...parameters: unknown[]) => FileOutcome = () => 'taken') {
  let lookUps = 0;
  const confirms: Confirm[] = [];
  const words: string[] = [];
  const failures: string[] = [];
  const session = {
    device: { id: 'd', number: 1, tenantId: 't', customerId: null },
    isGone: false,
    subscriptions: { qosOf: () => 1 },
    push(topic: string, payload: string | Buffer, _qos: number, confirm?: Confirm) {
      if (topic.endsWith('error')) words.push(String(payload));
      else confirms.push(confirm!);
      return true;
    },
    sendFile,
  } as unknown as Session;
  const downloads = {
    assigned: () => {
      lookUps += 1;
      return Promise.resolve({ id: 'p', dataSize });
    },
    pieces: { peek: () => Buffer.alloc(0), read: () => Promise.resolve(Buffer.alloc(1)) },
  } as unknown as Downloads;
  const admission = { count() {}, touch() {} } as unknown as FirmwareTopicsDeps['admission'];
  const ingest: FirmwareTopicsDeps['ingest'] = {
    accept(_decode, _body, source, waiter) {
      const { values } = source as unknown as { values: Map<string, { value: unknown }> };
      failures.push([...values].map(([key, value]) => `${key} ${JSON.stringify(value)}`).join());
      waiter.acknowledge();
      return values.size;
    },
  };
  const operation = firmwareTopics({ admission, downloads, ingest, packetBytesMax: 65_536 }).prefixes![
    'v2/fw/request/'
  ]!;
  const ask = (argument: string, size = '') =>
    new Promise<string>((resolve) => {
      const answers = { acknowledge: () => resolve('taken'), refuse: ({ reason }: Fault) => resolve(reason) };
      const publish = { session, payload: Buffer.from(size), ...answers } as unknown as Publish;
      try {
        operation(publish, argument);
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        resolve(error.reason);
      }
    });
  return { ask, confirms, words, failures, lookUps: () => lookUps };
}

it('sends no more bytes at once than it may, until they have arrived or their connection has ended', async () => {
  const { ask, confirms, words } = client();
  const fits = limits.otaMessageBytesInFlightPerTenantMax / fileBytes;
  for (let n = 0; n < fits; n += 1) expect(await ask('1/chunk/0')).toBe('taken');
  expect(await ask('1/chunk/0')).toBe('ota_busy');
  expect(words).toEqual(['FAILURE']);
  confirms[0]!(true);
  confirms[1]!(false);
  expect([await ask('1/chunk/0'), await ask('1/chunk/0'), await ask('1/chunk/0')]).toEqual([
    'taken',
    'taken',
    'ota_busy',
  ]);
});

it('looks up the assigned package once for many chunks at once', async () => {
  const { ask, lookUps } = client();
  const answers = await Promise.all(Array.from({ length: 50 }, (_, n) => ask(`7/chunk/${n}`, '1000')));
  expect(new Set(answers)).toEqual(new Set(['taken']));
  expect(lookUps()).toBe(1);
});

it('takes ids of any length that a number may have, and no other topics', async () => {
  const { ask } = client();
  const f = (argument: string) => ask(argument, '4');
  expect(await f('-9223372036854775808/chunk/2147483647')).toBe('taken');
  for (const argument of [
    '',
    '1',
    '1/chunk',
    '1/chunk/',
    '1/chunk/x',
    'x/chunk/1',
    '1/chunk/1/2',
    '1/chunk/-1',
    '1.5/chunk/1',
  ]) {
    expect(await f(argument)).toBe('unknown_topic');
  }
});

it('sends no more large files at once than it may, and takes back the places of those that have ended', async () => {
  const ends: (() => void)[] = [];
  const { ask, words } = client(300_000_000, (_topic, _file, _qos, onEnd) => {
    ends.push(onEnd as () => void);
    return 'taken';
  });
  // A tenant leaves a tenth of the places to others.
  for (let n = 0; n < 0.9 * limits.mqttFilesMax; n += 1) expect(await ask('1/chunk/0')).toBe('taken');
  expect([await ask('1/chunk/0'), words]).toEqual(['ota_busy', ['FAILURE']]);
  ends[0]!();
  expect([await ask('1/chunk/0'), await ask('1/chunk/0')]).toEqual(['taken', 'ota_busy']);
});

it('fails the update once when no message can hold the file, and still serves chunks', async () => {
  const { ask, words, failures } = client(300_000_000, () => 'too_large');
  expect(await ask('1/chunk/0')).toBe('ota_chunk_size');
  expect(await ask('1/chunk/0')).toBe('ota_chunk_size');
  expect(words).toEqual(['PAYLOAD_TOO_LARGE', 'PAYLOAD_TOO_LARGE']);
  expect(failures).toHaveLength(1);
  expect(failures[0]).toMatch(/^fw_state .*FAILED.*,fw_error .*300000000 bytes.*must ask for chunks/);
  expect(await ask('1/chunk/0', '4096')).toBe('taken');
});
