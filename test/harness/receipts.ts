/**
 * Receipts of the device API, and the answers of the REST API about them. Each call has a connection of its own, so
 * that any worker may answer.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { realDisk } from '../../src/journal/disk.ts';
import { Quarantine } from '../../src/journal/quarantine.ts';
import { Suspects } from '../../src/journal/suspects.ts';
import type { Api } from './api.ts';
import type { Engine } from './engine.ts';
import { sharedEngine } from './shared-engine.ts';

// biome-ignore lint/suspicious/noExplicitAny: an answer of the REST API
type Json = any;

/** Posts telemetry as a device that asks for a receipt; returns the receipt, null without one. */
export async function postForReceipt(token: string, body: string, api = sharedEngine()): Promise<string | null> {
  const headers = { 'X-Millrace-Receipt': 'true', connection: 'close' };
  const answer = await fetch(`${api.http}/api/v1/${token}/telemetry`, { method: 'POST', headers, body });
  expect(answer.status, await answer.text()).toBe(200);
  return answer.headers.get('x-millrace-receipt');
}

/** Returns the receipt of a message of one point. */
export async function receiptOf(token: string): Promise<string> {
  return (await postForReceipt(token, '{"ts":1700000000001,"values":{"k":1}}'))!;
}

export async function readReceipt(receipt: string, api: Api = sharedEngine(), token?: string): Promise<Json> {
  const bearer = `Bearer ${token ?? (await api.adminToken())}`;
  const headers = { 'x-authorization': bearer, connection: 'close' };
  const answer = await fetch(`${api.http}/api/receipt/${receipt}`, { headers });
  const text = await answer.text();
  expect(answer.status, text).toBe(200);
  return JSON.parse(text);
}

/**
 * Moves the suspects of a stopped engine to the quarantine, as the engine does after five minutes of refusals. Returns
 * their number.
 */
export async function proveSuspects(engine: Engine): Promise<number> {
  const journals = join(engine.dataDir, 'journal');
  let proven = 0;
  for (const name of readdirSync(journals).filter((each) => each.startsWith('worker-'))) {
    const suspects = await Suspects.open(realDisk, join(journals, name), 1e9, async () => {});
    const all = suspects.list();
    if (all.length === 0) continue;
    const payloads = await suspects.read(all);
    const quarantine = await Quarantine.open(realDisk, join(journals, name), 1e9);
    await quarantine.add(all.map((suspect, i) => ({ ...suspect, payload: payloads[i]! })));
    await suspects.settle(all);
    proven += all.length;
  }
  return proven;
}
