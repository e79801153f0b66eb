/**
 * JSON that is not strict, over every interface of devices and gateways: names without quotes, single quotes, comments,
 * extra commas.
 */
import { describe, expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { connectMqtt, levelName, levels } from '../../harness/mqtt-client.ts';
import { storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';
import { attributesOf, call, childName, childNamed, gatewayTopic, withGateway } from '../../harness/mqtt-gateway.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { withPoster } from '../../harness/stored.ts';

const post = (device: Device, path: string, body: string) =>
  fetch(`${sharedEngine().http}/api/v1/${device.token}${path}`, { method: 'POST', body });

describe('over HTTP', () => {
  test('telemetry is stored, each digit of it', () =>
    withPoster(async (poster) => {
      await poster.accept('{temperature:25}');
      await poster.accept("[{'level': 42.0, /* exact */ count: 9007199254740993,}, {state: 'it\\'s \"on\"'},] // end");
      expect(await poster.value('temperature')).toBe('25');
      expect(await poster.value('level')).toBe('42.0');
      expect(await poster.value('count')).toBe('9007199254740993');
      expect(await poster.value('state')).toBe('"it\'s \\"on\\""');
      expect(await poster.refuse('{mode: eco}')).toBe(
        'The body is not valid JSON: expected a value (text needs quotes) at byte 7.',
      );
    }));

  test('a body for the decoding thread, too', () =>
    withPoster(async (poster) => {
      const values = Array.from({ length: 20_000 }, (_, n) => `{ts:${1_700_000_000_000 + n},values:{big:${n}}}`);
      await poster.accept(`[${values.join(',')},]`);
      const last = { startTs: 1_700_000_019_999, endTs: 1_700_000_020_000 };
      expect((await poster.points('big', last)).map(({ value }) => value)).toEqual(['19999']);
    }));

  test('attributes, a claim and a call of the device are read', async () => {
    const device = await newDevice();
    expect((await post(device, '/attributes', "{zone:'north', size:2.50,}")).status).toBe(200);
    expect(await attributesOf(device, 'CLIENT_SCOPE')).toEqual({ zone: 'north', size: 2.5 });
    expect((await post(device, '/claim', "{secretKey:'plum',durationMs:60000}")).status).toBe(200);
    expect((await post(device, '/claim', '{secretKey:plum}')).status).toBe(400);
    const answer = await post(device, '/rpc', "{method:'echo',params:{a:12345678901234567890}}");
    expect(await answer.text()).toContain('"params": {"a":12345678901234567890}');
  });

  test('a reply to a command reaches its caller as strict JSON', async () => {
    const device = await newDevice();
    const { http } = sharedEngine();
    const polled = fetch(`${http}/api/v1/${device.token}/rpc?timeout=10000`);
    const answer = call(device, { method: 'm' });
    const { id } = (await (await polled).json()) as { id: number };
    expect((await post(device, `/rpc/${id}`, "{ok:true, value:1.0, text:'é',}")).status).toBe(200);
    expect(await answer).toEqual({ status: 200, text: '{"ok":true,"value":1.0,"text":"é"}' });
  });
});

for (const level of levels) {
  describe(levelName[level], () => {
    test('telemetry, attributes and requests of a device are read', () =>
      withDevice({ level }, async (client, device) => {
        await client.publish(telemetry, '{temperature:25}');
        expect(await storedValues(device, 'temperature')).toEqual(['25']);
        await client.publish('v1/devices/me/attributes', "{'zone':'north'}");
        expect(await attributesOf(device, 'CLIENT_SCOPE')).toEqual({ zone: 'north' });
        await client.publish('v1/devices/me/attributes/request/7', "{clientKeys:'zone'}");
        const { json } = await client.message('v1/devices/me/attributes/response/7');
        expect(json).toEqual({ client: { zone: 'north' } });
        await client.publish('v1/devices/me/rpc/request/8', "{method:'echo',params:{a:1}}");
        expect((await client.message('v1/devices/me/rpc/response/8')).json).toMatchObject({ params: { a: 1 } });
        await client.publish('v1/devices/me/claim', '{durationMs:60000}');
        if (level === 5) expect((await client.publish(telemetry, '{mode: eco}')).reasonCode).toBe(0x99);
      }));

    test('every message of a gateway is read', () =>
      withGateway({ level }, async (client) => {
        const [a, b] = [childName('A'), childName('B')];
        await client.subscribe(gatewayTopic.rpc);
        await client.publish(gatewayTopic.connect, `{device:'${a}'}`);
        await client.publish(gatewayTopic.telemetry, `{'${a}':[{ts:1,values:{t:1}},{t:2,},],"${b}":[{t:3}],}`);
        expect(await storedValues(await childNamed(b), 't')).toEqual(['3']);
        expect(await storedValues(await childNamed(a), 't')).toEqual(['2']);
        await client.publish(gatewayTopic.attributes, `{'${a}':{zone:'north'}}`);
        expect(await attributesOf(await childNamed(a), 'CLIENT_SCOPE')).toEqual({ zone: 'north' });
        await client.publish(gatewayTopic.request, `{id:1,device:'${a}',client:true,key:'zone'}`);
        expect((await client.message(gatewayTopic.response)).json).toEqual({ id: 1, device: a, value: 'north' });
        await client.publish(gatewayTopic.claim, `{'${a}':{secretKey:'s',},}`);
        const answer = call(await childNamed(a), { method: 'm' });
        const { id } = (await client.message(gatewayTopic.rpc)).json.data;
        await client.publish(gatewayTopic.rpc, `{device:'${a}',id:${id},data:{ok:true, n:1.0}}`);
        expect(await answer).toEqual({ status: 200, text: '{"ok":true,"n":1.0}' });
        await client.publish(gatewayTopic.disconnect, `{device:'${a}'}`);
        await client.quiet();
      }));
  });
}

test('a device provisions itself', async () => {
  const client = await connectMqtt({ token: 'provision' });
  try {
    await client.publish('/provision/request', "{provisionDeviceKey:'none',provisionDeviceSecret:'none'}");
    expect((await client.message('/provision/response')).json).toMatchObject({ status: 'NOT_FOUND' });
  } finally {
    client.cut();
  }
  const request = { method: 'POST', body: "{provisionDeviceKey:'none', provisionDeviceSecret:'none',}" };
  const answer = await fetch(`${sharedEngine().http}/api/v1/provision`, request);
  expect(await answer.json()).toMatchObject({ status: 'NOT_FOUND' });
});
