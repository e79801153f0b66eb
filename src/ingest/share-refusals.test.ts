/** The log lines while senders have their shares of the journal. */
import { expect, test } from 'vitest';
import type { Log } from '../base/log.ts';
import { ShareRefusals } from './share-refusals.ts';

function logged() {
  const lines: [string, object][] = [];
  const write = (event: string, fields: object = {}) => void lines.push([event, fields]);
  const log: Log = { debug: write, info: write, warn: write, error: write };
  return { lines, refusals: new ShareRefusals(log) };
}

test('the first refusal, each minute and the end are lines; the end comes when the journal has room', () => {
  const { lines, refusals } = logged();
  refusals.check(0, true);
  for (let at = 1_000; at < 131_000; at += 500) {
    refusals.add('device', at % 1_000 === 0 ? 'a' : 'b', at);
    refusals.check(at, true);
  }
  expect(lines.map(([event]) => event)).toEqual(Array(3).fill('ingest_share_refusing'));
  expect(lines[0]![1]).toMatchObject({ reason: 'backlog_share', kind: 'device', id: 'a', seconds: 0, messages: 1 });
  expect(lines[2]![1]).toMatchObject({ senders: 2, seconds: 120, messages: 241 });
  refusals.check(131_000, false);
  refusals.check(131_100, false);
  expect(lines.slice(3)).toEqual([['ingest_share_accepting', { senders: 2, seconds: 130, messages: 260 }]]);
});

test('it is over after a minute without a refusal, and begins again', () => {
  const { lines, refusals } = logged();
  refusals.add('tenant', 't', 1_000);
  for (let at = 1_000; at <= 61_000; at += 1_000) refusals.check(at, true);
  refusals.add('tenant', 't', 70_000);
  const [refusing, accepting] = ['ingest_share_refusing', 'ingest_share_accepting'];
  expect(lines.map(([event]) => event)).toEqual([refusing, accepting, refusing]);
});
