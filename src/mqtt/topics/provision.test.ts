import { setImmediate as turn } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from 'vitest';
import type { Fault } from '../../base/errors.ts';
import type { ProvisionDeps } from '../../onboarding/provision.ts';
import { strictly } from '../../value/lenient.ts';
import type { Publish } from '../session/operation.ts';
import { Session } from '../session/session.ts';
import { provisionTopics } from './provision.ts';
import { TopicTable } from './table.ts';

const events: string[] = [];
const link = {
  push: (topic: string, payload: string | Uint8Array) => {
    events.push(`${topic} ${payload}`);
    return true;
  },
  sendFile: () => 'gone' as const,
  isGone: false,
  close: (reason: string) => void events.push(`closed: ${reason}`),
};

function open() {
  const facts = { device: undefined, profileTopics: undefined, kind: 'provision', level: 5 } as const;
  const session = new Session(link, { ...facts, clientId: 'c', remoteAddress: '127.0.0.1' });
  const table = new TopicTable([provisionTopics({} as ProvisionDeps, strictly)]);
  const publish = (topic: string, body: string) => {
    const message = {
      topic,
      payload: Buffer.from(body),
      qos: 1,
      session,
      acknowledge: () => events.push('acknowledged'),
      refuse: (fault: Fault) => events.push(`refused: ${fault.reason}`),
    } as unknown as Publish;
    (table.exact.get(topic) ?? (() => table.dispatch(message)))(message, '');
  };
  return { session, publish };
}

beforeEach(() => {
  events.length = 0;
});

describe('a provisioning connection', () => {
  it('gets FAILURE for malformed requests, and nothing after its end', async () => {
    const { session, publish } = open();
    publish('/provision/request', '{');
    await turn();
    const failure = '/provision/response {"errorMsg":"Failed to provision device!","status":"FAILURE"}';
    expect(events).toEqual(['refused: provision_json', failure]);
    session.ended('client_disconnect');
    publish('/provision/request', '{');
    await turn();
    expect(events.slice(2)).toEqual(['refused: provision_gone']);
  });

  it('ends with any other topic', () => {
    const { publish } = open();
    publish('v1/devices/me/telemetry', '{"a":1}');
    expect(events).toEqual(['refused: provisioning_topic', 'closed: provisioning_topic']);
  });
});
