/** Receipts of the device API, and what the REST API says of them. */
import { expect } from 'vitest';
import type { Api } from './api.ts';
import { sharedEngine } from './shared-engine.ts';

// biome-ignore lint/suspicious/noExplicitAny: an answer of the REST API
type Json = any;

/** Posts telemetry as a device that asks for a receipt; returns the receipt, null without one. */
export async function postForReceipt(token: string, body: string, api = sharedEngine()): Promise<string | null> {
  const headers = { 'X-Millrace-Receipt': 'true' };
  const answer = await fetch(`${api.http}/api/v1/${token}/telemetry`, { method: 'POST', headers, body });
  expect(answer.status, await answer.text()).toBe(200);
  return answer.headers.get('x-millrace-receipt');
}

/** Returns the receipt of a message of one point. */
export async function receiptOf(token: string): Promise<string> {
  return (await postForReceipt(token, '{"ts":1700000000001,"values":{"k":1}}'))!;
}

export async function readReceipt(receipt: string, api: Api = sharedEngine(), token?: string): Promise<Json> {
  const answer = await api.send('GET', `/api/receipt/${receipt}`, undefined, token);
  const text = await answer.text();
  expect(answer.status, text).toBe(200);
  return JSON.parse(text);
}
