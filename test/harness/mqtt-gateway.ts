/** A gateway of the shared engine that speaks MQTT, and its children as an operator sees them over REST. */
import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import { type Device, eventually } from './api.ts';
import { connectMqtt, type Login, type MqttClient, type Transport } from './mqtt-client.ts';
import { ok } from './people.ts';
import { sharedEngine } from './shared-engine.ts';

export const gatewayTopic = {
  connect: 'v1/gateway/connect',
  disconnect: 'v1/gateway/disconnect',
  telemetry: 'v1/gateway/telemetry',
  attributes: 'v1/gateway/attributes',
  request: 'v1/gateway/attributes/request',
  response: 'v1/gateway/attributes/response',
  rpc: 'v1/gateway/rpc',
  claim: 'v1/gateway/claim',
} as const;

/** Returns a name that no other test uses. */
export function childName(prefix = 'child'): string {
  return `${prefix}-${randomUUID()}`;
}

export function newGateway(name = childName('hub')): Promise<Device> {
  return sharedEngine().createGateway(name);
}

/** Connects a new gateway, and cuts the connection when `use` has ended. */
export async function withGateway<T>(
  options: Transport & Omit<Login, 'token'>,
  use: (client: MqttClient, gateway: Device) => Promise<T>,
): Promise<T> {
  const gateway = await newGateway();
  const client = await connectMqtt({ ...options, token: gateway.token });
  try {
    return await use(client, gateway);
  } finally {
    client.cut();
  }
}

// biome-ignore lint/suspicious/noExplicitAny: an answer of the REST API
export type Json = any;

/** Returns the child as the REST API shows it; undefined when there is none. */
export async function findChild(name: string): Promise<Json> {
  const answer = await sharedEngine().send('GET', `/api/tenant/devices?deviceName=${encodeURIComponent(name)}`);
  return answer.status === 404 ? undefined : await answer.json();
}

export async function childNamed(name: string): Promise<Device> {
  const child = await findChild(name);
  expect(child, `no device ${name}`).toBeDefined();
  const { credentialsId } = await ok('GET', `/api/device/${child.id.id}/credentials`);
  return { id: child.id.id, token: credentialsId };
}

export async function setShared(device: Device, values: object): Promise<void> {
  await ok('POST', `/api/plugins/telemetry/DEVICE/${device.id}/SHARED_SCOPE`, values);
}

export async function deleteShared(device: Device, key: string): Promise<void> {
  await ok('DELETE', `/api/plugins/telemetry/DEVICE/${device.id}/SHARED_SCOPE?keys=${key}`);
}

/** Returns the values of a scope by key. */
export async function attributesOf(device: Device, scope: string): Promise<Record<string, Json>> {
  const list = await ok('GET', `/api/plugins/telemetry/DEVICE/${device.id}/values/attributes/${scope}`);
  return Object.fromEntries((list as { key: string; value: Json }[]).map(({ key, value }) => [key, value]));
}

/** Makes a two-way call; resolves to the status and the body of its answer. */
export async function call(device: Device, body: object): Promise<{ status: number; text: string }> {
  const answer = await sharedEngine().send('POST', `/api/rpc/twoway/${device.id}`, body);
  return { status: answer.status, text: await answer.text() };
}

/** Returns the server attributes of a child's activity, once `isSo` holds. */
export function activity(
  device: Device,
  isSo: (values: Record<string, Json>) => boolean,
): Promise<Record<string, Json>> {
  return eventually(async () => {
    const values = await attributesOf(device, 'SERVER_SCOPE');
    return isSo(values) ? values : undefined;
  }, 15_000);
}
