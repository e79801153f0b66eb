/** Clients can publish to or subscribe to every topic that a file of this folder names. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { loadConfig } from '../../base/settings/config.ts';
import { deviceTopics, type MqttDoorDeps } from '../open.ts';
import { Session, type SessionKind, type SessionLink } from '../session/session.ts';
import { gatewayTopics } from './gateway.ts';
import { subscribe } from './grants.ts';
import { provisionTopics } from './provision.ts';
import { TopicTable } from './table.ts';

/** Replaces all parts that operations use, because the making of a table calls none of them. */
const part: unknown = new Proxy(() => part, { get: (_, name) => (name === Symbol.iterator ? undefined : part) });
const deps = new Proxy({ config: loadConfig({}) } as MqttDoorDeps, {
  get: (own, name) => Reflect.get(own, name) ?? part,
});
const tables: Record<'device' | 'provision', TopicTable> = {
  device: new TopicTable([...deviceTopics(deps), ...gatewayTopics(deps, true).topics]),
  provision: new TopicTable([provisionTopics(deps.provisioning, deps.readBody)]),
};

function sessionOf(kind: SessionKind): Session {
  const facts = { device: undefined, level: 4, clientId: '', remoteAddress: '', profileTopics: undefined } as const;
  return new Session({} as SessionLink, { ...facts, kind });
}

function isGranted(topic: string, kind: 'device' | 'provision', table = tables[kind]): boolean {
  const { codes } = subscribe(sessionOf(kind), { packetId: 1, filters: [{ filter: topic, qos: 0 }] }, table.answers);
  return codes[0] === 0;
}

test('a topic whose file names its answers can be answered: they can be subscribed, others cannot', () => {
  const table = new TopicTable([{ exact: { 'v1/devices/me/time': () => {} }, answers: ['v1/devices/me/time/now/+'] }]);
  expect(isGranted('v1/devices/me/time/now/+', 'device', table)).toBe(true);
  expect(isGranted('v1/devices/me/time/now/7', 'device', table)).toBe(true);
  expect(isGranted('v1/devices/me/time/then', 'device', table)).toBe(false);
  expect(isGranted('v1/devices/me/time/now/+', 'device')).toBe(false);
});

test('every answer of the tables can be subscribed', () => {
  expect(tables.device.answers.length).toBeGreaterThan(10);
  for (const answer of tables.device.answers) expect(isGranted(answer, 'device'), answer).toBe(true);
  for (const answer of tables.provision.answers) expect(isGranted(answer, 'provision'), answer).toBe(true);
});

test('every topic in a file of this folder is taken or can be subscribed', () => {
  const faults: string[] = [];
  const taken = Object.values(tables).flatMap((table) => [
    ...table.exact.keys(),
    ...table.prefixes.map((row) => row.prefix),
  ]);
  const known = [...taken, ...tables.device.answers];
  let topics = 0;
  for (const file of readdirSync(import.meta.dirname).filter(
    (name) => name.endsWith('.ts') && !name.endsWith('.test.ts'),
  )) {
    const code = readFileSync(join(import.meta.dirname, file), 'utf8').replace(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, '');
    for (const [, topic = ''] of code.matchAll(/['`]((?:v1|v2|\/provision)\/[^'`]*)['`]/g)) {
      topics += 1;
      const concrete = topic.replace(/\$\{[^}]*\}/g, 'fw');
      // A prefix ends before the id.
      const filter = concrete.endsWith('/') ? `${concrete}+` : concrete;
      if (taken.includes(topic) || isGranted(filter, 'device') || isGranted(filter, 'provision')) continue;
      // The beginning of such topics.
      if (known.some((name) => name.startsWith(`${concrete}/`))) continue;
      faults.push(`${file}: ${topic} is neither taken nor can it be subscribed: name it in "answers"`);
    }
  }
  expect(topics).toBeGreaterThan(30);
  expect(faults, faults.join('\n')).toEqual([]);
});
