/** Large bodies of one tenant beside those of another: what waits for the decoding thread (docs/security.md). */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { startEngine } from '../harness/engine.ts';
import { RawConnection, requestBytes } from '../harness/raw.ts';
import { expectError } from '../harness/stored.ts';
import { makeTenant } from '../harness/tenants.ts';

test('a large body without a place in the queue is refused before it arrives, and that of another tenant is not', async () => {
  const engine = await startEngine({ workers: 1 });
  const open: RawConnection[] = [];
  const connect = async () => {
    const connection = await RawConnection.open(engine.port);
    open.push(connection);
    return connection;
  };
  try {
    const { api } = engine;
    const system = await api.login('sysadmin@millrace.local', api.address.adminPassword);
    const { token: other } = (await makeTenant(api, system.token)).admin;
    const [device, ofOther] = [await api.newDevice(), (await api.createDevices([{ name: 'other' }], other))[0]!];
    const path = `/api/v1/${device.token}/telemetry`;
    // The first message of a device is looked up.
    for (const { token } of [device, ofOther]) expect(await api.postTelemetry(token, '{"a":1}')).toBe(200);

    // The thread reads this body for half a second and more, because no part of it can be copied unchanged.
    const slow = `{"a":[${'["\\u0041"], '.repeat(2_000_000)}1]}`;
    void (await connect()).send(requestBytes({ path, body: slow }));
    const body = '{"a":1}'.padEnd(300_000);
    for (let n = 0; n < 40; n += 1) void (await connect()).send(requestBytes({ path, body }));
    // Heads without a body: those that arrive while the queue is full are refused, and no other one is answered.
    const head = requestBytes({ path, headers: { 'Content-Length': String(body.length) } });
    const { announced, refused } = await Promise.any(
      Array.from({ length: 40 }, async (_, n) => {
        await sleep(n * 25);
        const announced = await connect();
        await announced.send(head);
        return { announced, refused: await announced.response() };
      }),
    );
    expect(expectError(refused, 503)).toContain('Too many large messages');
    // The rest of the body, which still arrives, is skipped, and then the connection is closed.
    expect(refused.headers.get('connection')).toBe('close');
    await announced.send(body);
    expect(await announced.untilClosed()).toBe('');

    const answer = await (await connect()).ask({ path: `/api/v1/${ofOther.token}/telemetry`, body }, 30_000);
    expect(answer.status).toBe(200);
  } finally {
    for (const connection of open) connection.close();
    await engine.destroy();
  }
});

test('a large body beyond the rate limit of its device is refused before it arrives, also while the engine stops', async () => {
  const engine = await startEngine({ workers: 1, env: { RATE_LIMITS_DEVICE_TELEMETRY_MESSAGES: '1:3600' } });
  const open: RawConnection[] = [];
  try {
    const { token } = await engine.api.newDevice();
    const path = `/api/v1/${token}/telemetry`;
    expect(await engine.api.postTelemetry(token, '{"a":1}')).toBe(200);
    const body = '{"a":1}'.padEnd(300_000);
    const announce = async (headers: Record<string, string>, sent = '') => {
      const connection = await RawConnection.open(engine.port);
      open.push(connection);
      await connection.send(requestBytes({ path, headers }));
      await connection.send(sent);
      return connection;
    };
    const whole = { 'Content-Length': String(body.length) };
    const announced = await announce(whole);
    expectError(await announced.response(), 429);
    await announced.send(body);
    expect(await announced.untilClosed()).toBe('');
    // After a body that ends soon, the connection is usable.
    const sent = await announce(whole, body);
    expectError(await sent.response(), 429);
    expect((await sent.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
    // A body in pieces says its length only as it arrives.
    const piece = body.padEnd(2_000_000);
    const inPieces = await announce({ 'Transfer-Encoding': 'chunked' }, `1e8480\r\n${piece}\r\n`);
    expectError(await inPieces.response(), 429);

    const last = await announce(whole);
    // The answer to a later request shows that the head has arrived.
    expect((await sent.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
    const stopped = engine.stop();
    expectError(await last.response(), 429);
    await stopped;
  } finally {
    for (const connection of open) connection.close();
    await engine.destroy();
  }
});
