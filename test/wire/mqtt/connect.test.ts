/** CONNECT and CONNACK: which logins are accepted, and which properties the server returns (docs/mqtt.md#connect). */
import { randomUUID } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { connectBytes, frame, properties, uint16, uint32, varInt } from '../../harness/mqtt-bytes.ts';
import {
  codeOf,
  type Login,
  levelName,
  levels,
  type MqttClient,
  withMqtt,
  withSocket,
} from '../../harness/mqtt-client.ts';
import { storedKeys, telemetry, withDevice } from '../../harness/mqtt-device.ts';
import { ok } from '../../harness/people.ts';
import { newDevice } from '../../harness/shared-engine.ts';

/** Logs in and expects a refusal: its code, no session, then the end. */
async function refusal(client: MqttClient, login: Login): Promise<number> {
  const connack = await client.connect(login);
  expect(connack.sessionPresent).toBe(false);
  await client.closed();
  expect(client.received).toEqual([]);
  return codeOf(connack);
}

/** A device that logs in with these instead of a token. */
async function withBasic(value: object): Promise<void> {
  const { id } = await newDevice();
  const { version: _, ...credentials } = await ok('GET', `/api/device/${id}/credentials`);
  const credentialsValue = JSON.stringify(value);
  await ok('POST', '/api/device/credentials', { ...credentials, credentialsType: 'MQTT_BASIC', credentialsValue });
}

for (const level of levels) {
  const isFive = level === 5;

  describe(levelName[level], () => {
    test('a token as user name is accepted, without a stored session, with any clean flag', async () => {
      for (const clean of [true, false]) {
        await withDevice({ level, clean, clientId: `c-${randomUUID().slice(0, 8)}` }, async (client) => {
          expect(codeOf(client.connack!)).toBe(0);
          expect(client.connack!.sessionPresent).toBe(false);
        });
      }
    });

    test('an unknown user name is refused', () =>
      withSocket({ level }, async (client) => {
        expect(await refusal(client, { username: `unknown-${randomUUID()}` })).toBe(isFive ? 0x86 : 5);
      }));

    test('an unknown client id alone is refused', () =>
      withSocket({ level }, async (client) => {
        expect(await refusal(client, { clientId: `x${randomUUID().slice(0, 8)}` })).toBe(isFive ? 0x85 : 2);
      }));

    test('the wrong password is refused, the right one is not', async () => {
      const [clientId, username] = [`c${randomUUID().slice(0, 8)}`, `u${randomUUID().slice(0, 8)}`];
      await withBasic({ clientId, userName: username, password: 'right' });
      await withSocket({ level }, async (client) => {
        expect(await refusal(client, { clientId, username, password: 'wrong' })).toBe(isFive ? 0x86 : 5);
      });
      await withMqtt({ level, clientId, username, password: 'right' }, (client) => client.quiet());
    });

    test('a client id alone is let in when it is the credentials', async () => {
      const clientId = `c${randomUUID().slice(0, 8)}`;
      await withBasic({ clientId });
      await withMqtt({ level, clientId }, (client) => client.quiet());
    });

    test('a token is let in with any password and any client id', async () => {
      const { token } = await newDevice();
      await withMqtt({ level, token, password: 'anything', clientId: 'any client' }, (client) => client.quiet());
    });

    test('a password that is no UTF-8 is binary data, not a malformed packet', async () => {
      const { token } = await newDevice();
      await withSocket({ level }, async (client) => {
        await client.send(
          connectBytes({ level, clientId: 'c', username: token, password: Buffer.from([0, 0xff, 0xfe]) }),
        );
        expect(codeOf(await client.expect('connack'))).toBe(0);
      });
    });

    test('a byte order mark in a client id is kept, not cut', async () => {
      const clientId = `\uFEFFc${randomUUID().slice(0, 8)}`;
      await withBasic({ clientId });
      await withMqtt({ level, clientId }, (client) => client.quiet());
      await withSocket({ level }, async (client) => {
        expect(await refusal(client, { clientId: clientId.slice(1) })).toBe(isFive ? 0x85 : 2);
      });
    });

    test('nothing after a refused CONNECT is handled', () =>
      withSocket({ level }, async (client) => {
        await client.write(
          client.connectPacket({ username: `unknown-${randomUUID()}` }),
          client.publishPacket(telemetry, '{"a":1}'),
          { cmd: 'pingreq' },
        );
        await client.closed();
        expect(client.received.map(({ cmd }) => cmd)).toEqual(['connack']);
      }));
  });
}

describe('empty client ids', () => {
  test('MQTT 3.1 does not know them: code 2', async () => {
    const { token } = await newDevice();
    await withSocket({ level: 3 }, async (client) => {
      await client.send(connectBytes({ level: 3, clientId: '', username: token }));
      expect(codeOf(await client.expect('connack'))).toBe(2);
      await client.closed();
    });
  });

  test('MQTT 3.1 takes one of more than 23 characters', () =>
    withDevice({ level: 3, clientId: 'a'.repeat(64) }, (client) => client.quiet()));

  test('MQTT 3.1.1 takes one, with and without a clean session', async () => {
    const { token } = await newDevice();
    for (const clean of [true, false]) {
      await withSocket({ level: 4 }, async (client) => {
        await client.send(connectBytes({ level: 4, clientId: '', username: token, clean }));
        const connack = await client.expect('connack');
        expect([codeOf(connack), connack.sessionPresent]).toEqual([0, false]);
        await client.quiet();
      });
    }
  });

  test('MQTT 5 receives the assigned one, and the largest packet', () =>
    withDevice({ clientId: '' }, async (client) => {
      const { assignedClientIdentifier, maximumPacketSize } = client.connack!.properties!;
      expect(assignedClientIdentifier).toMatch(/^[0-9a-zA-Z-]{1,64}$/);
      expect(maximumPacketSize).toBe(65_536);
    }));

  test('MQTT 5 does not receive an id that it chose itself', () =>
    withDevice({ clientId: 'mine' }, async (client) => {
      expect(client.connack!.properties).not.toHaveProperty('assignedClientIdentifier');
    }));
});

describe('MQTT 5 CONNACK', () => {
  test('it names what the server does not support', () =>
    withDevice({ properties: { sessionExpiryInterval: 3600, topicAliasMaximum: 10 } }, async (client) => {
      expect(client.connack!.properties).toMatchObject({
        retainAvailable: false,
        sharedSubscriptionAvailable: false,
        subscriptionIdentifiersAvailable: false,
        sessionExpiryInterval: 0,
        maximumPacketSize: 65_536,
      });
      expect(client.connack!.properties!.receiveMaximum ?? 65_535).toBeGreaterThanOrEqual(100);
      expect(client.connack!.properties!.topicAliasMaximum ?? 0).toBe(0);
    }));

  test('a refusal names what to change', () =>
    withSocket({}, async (client) => {
      const connack = await client.connect({ username: `unknown-${randomUUID()}` });
      expect(connack.properties?.reasonString).toMatch(/\w+/);
    }));

  test('the reason is left out when the client does not want problem information', () =>
    withSocket({}, async (client) => {
      const connack = await client.connect({
        username: `unknown-${randomUUID()}`,
        properties: { requestProblemInformation: false },
      });
      expect(codeOf(connack)).toBe(0x86);
      expect(connack.properties?.reasonString).toBeUndefined();
    }));

  test('an authentication method is refused with 0x8C', () =>
    withSocket({}, async (client) => {
      expect(await refusal(client, { properties: { authenticationMethod: 'SCRAM-SHA-1' } })).toBe(0x8c);
    }));
});

describe('wrong protocols', () => {
  for (const [name, fields, codes] of [
    ['case 11: level 6', { level: 6 }, [0x01, 0x84]],
    ['level 2 of MQTT', { level: 2, protocol: 'MQTT' }, [0x01, 0x84]],
    ['level 4 of MQIsdp', { level: 4, protocol: 'MQIsdp' }, [0x01, 0x84]],
    ['another name', { level: 4, protocol: 'MQTX' }, [0x01, 0x84]],
    ['an empty name', { level: 4, protocol: '' }, [0x01, 0x84]],
    ['a name in small letters', { level: 5, protocol: 'mqtt' }, [0x01, 0x84]],
    ['the bridge bit in the level', { level: 0x84, protocol: 'MQTT' }, [0x01, 0x84]],
  ] as const) {
    test(`${name}: CONNACK with the reason, then the end`, async () => {
      const { token } = await newDevice();
      // The answer may have the form of MQTT 3 or 5, and the codec would take two bytes of MQTT 3 for an incomplete
      // CONNACK of MQTT 5. So the test reads bytes.
      await withSocket({ level: 4 }, async (client) => {
        const bytes: Buffer[] = [];
        client.stream.on('data', (chunk: Buffer) => bytes.push(chunk));
        await client.send(connectBytes({ clientId: 'c', username: token, ...fields }));
        await client.closed();
        const answer = Buffer.concat(bytes);
        expect(answer[0]).toBe(0x20);
        expect(answer[2]).toBe(0);
        expect(codes).toContain(answer[3]);
      });
    });
  }
});

describe('malformed CONNECT: the connection ends without a login', () => {
  const login = { clientId: 'c', username: 'someone' };
  const badText = Buffer.from([0x61, 0xc3, 0x28]);
  const will = { topic: 'a', payload: 'x' };
  for (const [name, bytes, level = 4] of [
    ['reserved flag', connectBytes({ ...login, flags: 0x83 })],
    ['reserved flag, MQTT 5', connectBytes({ ...login, level: 5, flags: 0x83 }), 5],
    ['header flags', connectBytes({ ...login, headerFlags: 1 })],
    ['a will QoS without a will', connectBytes({ ...login, flags: 0x8a })],
    ['a will QoS of 3', connectBytes({ ...login, will: { ...will, qos: 3 } })],
    ['a retained will that is none', connectBytes({ ...login, flags: 0xa2 })],
    ['a password without a user name, MQTT 3.1.1', connectBytes({ clientId: 'c', password: 'p' })],
    ['bytes behind the last field', connectBytes({ ...login, trailing: Buffer.from('x') })],
    ['a user name that is announced and not there', connectBytes({ clientId: 'c', flags: 0x82 })],
    [
      'a client id that is longer than the packet',
      frame(1, 0, uint16(4), Buffer.from('MQTT'), 4, 2, 0, 60, 0, 200, 0x61),
    ],
    ['an empty packet', frame(1, 0)],
    ['a client id that is no UTF-8', connectBytes({ ...login, clientId: badText })],
    ['a user name that is no UTF-8', connectBytes({ clientId: 'c', username: badText })],
    ['a user name with U+0000', connectBytes({ clientId: 'c', username: 'a\u0000b' })],
    ['a surrogate in a user name', connectBytes({ clientId: 'c', username: Buffer.from([0xed, 0xa0, 0x80]) })],
    ['a will topic that is no UTF-8', connectBytes({ ...login, will: { ...will, topic: badText } })],
    ['receive maximum 0', connectBytes({ ...login, level: 5, properties: properties(0x21, 0, 0) }), 5],
    ['maximum packet size 0', connectBytes({ ...login, level: 5, properties: properties(0x27, uint32(0)) }), 5],
    ['a property twice', connectBytes({ ...login, level: 5, properties: properties(0x21, 0, 9, 0x21, 0, 9) }), 5],
    ['a property of PUBLISH', connectBytes({ ...login, level: 5, properties: properties(0x23, 0, 1) }), 5],
    ['an unknown property', connectBytes({ ...login, level: 5, properties: properties(0x7e, 0, 1) }), 5],
    ['request problem information 2', connectBytes({ ...login, level: 5, properties: properties(0x17, 2) }), 5],
    ['properties longer than the packet', connectBytes({ ...login, level: 5, properties: varInt(16_000) }), 5],
    ['properties cut in a value', connectBytes({ ...login, level: 5, properties: properties(0x21, 0) }), 5],
  ] as [string, Buffer, (3 | 4 | 5)?][]) {
    test(name, () =>
      withSocket({ level }, async (client) => {
        await client.send(bytes, client.encode({ cmd: 'pingreq' }));
        await client.closed();
        // The server may send a CONNACK with a refusal or nothing, and never a CONNACK that accepts or the answer to
        // the ping.
        for (const packet of client.received) {
          expect(packet.cmd).toBe('connack');
          expect(codeOf(packet as never)).toBeGreaterThan(0);
        }
        expect(client.received.length).toBeLessThan(2);
      }),
    );
  }

  test('a password without a user name is allowed in MQTT 5', () =>
    withSocket({ level: 5 }, async (client) => {
      await client.send(connectBytes({ level: 5, clientId: `x${randomUUID()}`, password: 'p' }));
      expect([0x85, 0x86]).toContain(codeOf(await client.expect('connack')));
      await client.closed();
    }));
});

describe('wills', () => {
  for (const level of levels) {
    test(`${levelName[level]}, case 13: one is accepted and never published, however the connection ends`, async () => {
      const device = await newDevice();
      const will = { topic: telemetry, payload: Buffer.from('{"will":1}'), qos: 1 as const };
      await withMqtt({ level, token: device.token, will }, (client) => client.quiet());
      await withMqtt({ level, token: device.token, will }, (client) => client.disconnect());
      expect(await storedKeys(device)).toEqual([]);
    });
  }

  test('MQTT 5: a retained one is refused with 0x9A, retain is not available', async () => {
    const { token } = await newDevice();
    await withSocket({}, async (client) => {
      expect(await refusal(client, { token, will: { topic: 'a', payload: Buffer.from('x'), retain: true } })).toBe(
        0x9a,
      );
    });
  });
});

describe('a second CONNECT', () => {
  for (const level of levels) {
    test(`${levelName[level]}: 0x82 and the end`, () =>
      withDevice({ level }, async (client, device) => {
        await client.write(client.connectPacket({ token: device.token }));
        await client.closedFor(0x82);
      }));
  }
});

test('MQTT 5: a refusal is no larger than what the client takes', () =>
  withSocket({}, async (client) => {
    const username = `unknown-${randomUUID()}`;
    await client.write(client.connectPacket({ username, properties: { maximumPacketSize: 40 } }));
    const { reasonCode, properties } = await client.expect('connack');
    expect([reasonCode, properties?.reasonString]).toEqual([0x86, undefined]);
  }));
