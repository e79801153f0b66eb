/** The long poll for shared attributes, and that no update is lost between polls (docs/http.md#attribute-updates). */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { leastMs } from '../../harness/least-time.ts';
import { RawConnection, type RawResponse } from '../../harness/raw.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { restOn, withWorkers } from '../../harness/workers.ts';

const port = () => sharedEngine().address.port;

/** Long enough for a poll to be held by any worker. */
const heldMs = 150;

/** Longer than a poll with an answer lasts on any machine. */
const longMs = 20_000;

/** Starts a poll; the poll is held when this function returns. */
async function heldPoll(device: DeviceUser, timeoutMs = longMs) {
  const answer = device.poll(timeoutMs);
  await sleep(heldMs);
  return { answer };
}

/** Creates a device that has polled once, so that its cursor is started. */
async function startedDevice(): Promise<DeviceUser> {
  const device = await DeviceUser.create();
  expect((await device.poll(1)).status).toBe(408);
  return device;
}

test('a poll without any change ends as 408 with an empty body, in time', async () => {
  const device = await DeviceUser.create();
  const startedAt = performance.now();
  const answer = await device.poll(1_000);
  const waitedMs = performance.now() - startedAt;
  expect([answer.status, answer.body]).toEqual([408, '']);
  expect(waitedMs).toBeGreaterThan(950);
  expect(waitedMs).toBeLessThan(9_000);
});

test('a held poll gets the changed pairs, flat', async () => {
  const device = await DeviceUser.create();
  const { answer } = await heldPoll(device);
  await device.set('SHARED_SCOPE', '{"k":5,"big":9223372036854775807,"f":42.0}');
  expect(await answer).toEqual({
    status: 200,
    body: '{"k":5,"big":9223372036854775807,"f":42.0}',
    contentType: 'application/json',
  });
});

test('a held poll gets deleted keys', async () => {
  const device = await DeviceUser.create();
  await device.set('SHARED_SCOPE', '{"k":5,"m":6,"n":7}');
  const { answer } = await heldPoll(device);
  await device.delete('SHARED_SCOPE', 'k,m,unknown');
  expect((await answer).body).toBe('{"deleted":["k","m"]}');
  expect(await device.read()).toBe('{"shared":{"n":7}}');
});

test('the same value written again is a change', async () => {
  const device = await DeviceUser.create();
  await device.set('SHARED_SCOPE', '{"k":5}');
  const { answer } = await heldPoll(device);
  await device.set('SHARED_SCOPE', '{"k":5}');
  expect((await answer).body).toBe('{"k":5}');
});

test('client and server attributes do not wake a poll, nor does the deletion of what is not there', async () => {
  const device = await DeviceUser.create();
  const { answer } = await heldPoll(device, 700);
  await device.post('{"k":1}');
  await device.set('SERVER_SCOPE', '{"k":1}');
  await device.delete('SERVER_SCOPE', 'k');
  await device.delete('SHARED_SCOPE', 'k');
  expect((await answer).status).toBe(408);
});

test('a timeout that is negative or not a whole number is 400, before the token is checked', async () => {
  const device = await DeviceUser.create();
  for (const timeout of ['x', '-1', '1.5', '1e3', '%20']) {
    const answer = await device.ask('GET', `attributes/updates?timeout=${timeout}`);
    expect([answer.status, JSON.parse(answer.body).errorCode]).toEqual([400, 31]);
  }
  const response = await fetch(`${sharedEngine().http}/api/v1/unknown/attributes/updates?timeout=x`);
  expect(response.status).toBe(400);
});

test('several polls of one device all get the same change, on every worker', async () => {
  const device = await DeviceUser.create();
  const polls = await Promise.all(Array.from({ length: 6 }, () => heldPoll(device)));
  await device.set('SHARED_SCOPE', '{"k":1}');
  for (const { answer } of polls) expect((await answer).body).toBe('{"k":1}');
});

test('HEAD does not take an update', async () => {
  const device = await startedDevice();
  await device.set('SHARED_SCOPE', '{"k":1}');
  expect((await device.ask('HEAD', 'attributes/updates?timeout=100')).status).toBe(405);
  expect((await device.poll(longMs)).body).toBe('{"k":1}');
});

test('the first poll only starts the cursor: earlier values are not sent', async () => {
  const device = await DeviceUser.create();
  await device.set('SHARED_SCOPE', '{"before":1}');
  expect((await device.poll(200)).status).toBe(408);
});

test('what changed between two polls comes with the next one, once and together', async () => {
  const device = await startedDevice();
  for (let i = 1; i <= 5; i += 1) await device.set('SHARED_SCOPE', `{"k":${i}}`);
  await device.set('SHARED_SCOPE', '{"m":"x"}');
  expect((await device.poll(longMs)).body).toBe('{"k":5,"m":"x"}');
  expect((await device.poll(300)).status).toBe(408);
});

test('changes are sent first, deletions with the next poll', async () => {
  const device = await DeviceUser.create();
  await device.set('SHARED_SCOPE', '{"gone":1,"stays":1}');
  expect((await device.poll(1)).status).toBe(408);
  await device.delete('SHARED_SCOPE', 'gone');
  await device.set('SHARED_SCOPE', '{"stays":2}');
  expect((await device.poll(longMs)).body).toBe('{"stays":2}');
  expect((await device.poll(longMs)).body).toBe('{"deleted":["gone"]}');
  expect((await device.poll(300)).status).toBe(408);
});

test('a deletion that follows the end of the very first poll at once is sent with the next one', async () => {
  const devices = await Promise.all(Array.from({ length: 40 }, () => DeviceUser.create()));
  const answers = devices.map(async (device) => {
    await device.set('SHARED_SCOPE', '{"gone":1}');
    expect((await device.poll(1)).status).toBe(408);
    await device.delete('SHARED_SCOPE', 'gone');
    return (await device.poll(longMs)).body;
  });
  expect(new Set(await Promise.all(answers))).toEqual(new Set(['{"deleted":["gone"]}']));
});

test('a key that was deleted and set again is sent with its new value', async () => {
  const device = await DeviceUser.create();
  await device.set('SHARED_SCOPE', '{"k":1,"m":1}');
  expect((await device.poll(1)).status).toBe(408);
  await device.delete('SHARED_SCOPE', 'k,m');
  await device.set('SHARED_SCOPE', '{"k":2}');
  expect((await device.poll(longMs)).body).toBe('{"k":2}');
  expect((await device.poll(longMs)).body).toBe('{"deleted":["m"]}');
  expect((await device.poll(300)).status).toBe(408);
});

test('a change that meets no client is sent to the next one', () =>
  withWorkers(port(), async ([first, second]) => {
    const device = await startedDevice();
    await first!.send(
      `GET /api/v1/${device.device.token}/attributes/updates?timeout=20000 HTTP/1.1\r\nHost: x\r\n\r\n`,
    );
    await sleep(heldMs);
    first!.close();
    await sleep(50);
    await device.set('SHARED_SCOPE', '{"k":1}');
    expect((await pollOn(second!, device, longMs)).body.toString()).toBe('{"k":1}');
  }));

test('a poll on one worker receives a change made on another', () =>
  withWorkers(port(), async ([first, second]) => {
    const token = await sharedEngine().adminToken();
    for (const [poller, writer] of [
      [first!, second!],
      [second!, first!],
    ] as const) {
      const receivedMs = async () => {
        const device = await DeviceUser.create();
        const path = `/api/plugins/telemetry/${device.device.id}/SHARED_SCOPE`;
        const answer = pollOn(poller, device, longMs);
        await sleep(heldMs);
        const startedAt = performance.now();
        const written = await restOn(writer, token, { path, body: '{"k":7}' });
        expect(written.status).toBe(200);
        expect((await answer).body.toString()).toBe('{"k":7}');
        return performance.now() - startedAt;
      };
      expect(await leastMs(900, receivedMs)).toBeLessThan(900);
    }
  }));

test('the next poll may reach another worker: nothing is lost and nothing sent twice', () =>
  withWorkers(port(), async (connections) => {
    const device = await startedDevice();
    for (let i = 0; i < 12; i += 1) {
      await device.set('SHARED_SCOPE', `{"k":${i}}`);
      const answered = await pollOn(connections[i % 2]!, device, longMs);
      expect(answered.body.toString()).toBe(`{"k":${i}}`);
      // The other worker learns a moment later that the answer was received.
      await sleep(heldMs);
      expect((await pollOn(connections[(i + 1) % 2]!, device, 50)).status).toBe(408);
    }
  }));

test('a device that polls all the time while it is written to ends up with every last value', async () => {
  const device = await startedDevice();
  const known: Record<string, number> = {};
  let writing = true;
  const polling = (async () => {
    for (;;) {
      const done = !writing;
      const { status, body } = await device.poll(300);
      if (status === 200) Object.assign(known, JSON.parse(body));
      else if (done) return;
    }
  })();
  for (let i = 0; i < 60; i += 1) await device.set('SHARED_SCOPE', `{"k${i % 7}":${i}}`);
  writing = false;
  await polling;
  expect(known).toEqual({ k0: 56, k1: 57, k2: 58, k3: 59, k4: 53, k5: 54, k6: 55 });
});

test('a large update comes whole', async () => {
  const device = await DeviceUser.create();
  const { answer } = await heldPoll(device);
  const body = `{"large":"${'x'.repeat(200_000)}"}`;
  await device.set('SHARED_SCOPE', body);
  expect((await answer).body).toBe(body);
});

test('deleting the device ends its polls with 403, and its attributes are gone', async () => {
  const device = await DeviceUser.create();
  await device.post('{"a":1}');
  await device.set('SHARED_SCOPE', '{"b":1}');
  const { answer } = await heldPoll(device);
  expect((await sharedEngine().send('DELETE', `/api/device/${device.device.id}`)).status).toBe(200);
  const { status, body } = await answer;
  expect([status, JSON.parse(body).message]).toEqual([403, 'Device was deleted!']);
  expect((await device.poll(100)).status).toBe(401);
  const path = `/api/plugins/telemetry/DEVICE/${device.device.id}/values/attributes`;
  expect((await sharedEngine().send('GET', path)).status).toBe(404);
});

test('a new token ends the polls of the old one as expired', async () => {
  const device = await DeviceUser.create();
  const { answer } = await heldPoll(device);
  const path = `/api/device/${device.device.id}/credentials`;
  const credentials = (await (await sharedEngine().send('GET', path)).json()) as object;
  const changed = { ...credentials, credentialsId: `${device.device.token}-new` };
  expect((await sharedEngine().send('POST', '/api/device/credentials', changed)).status).toBe(200);
  expect(await answer).toMatchObject({ status: 408, body: '' });
  expect((await device.poll(100)).status).toBe(401);
});

test('clients that disconnect free their places at once', async () => {
  const device = await DeviceUser.create();
  // More polls than other tests hold, begin or end on this engine at the same time.
  const clients = 60;
  const others = await pollsHeld();
  const connections = await Promise.all(Array.from({ length: clients }, () => RawConnection.open(port())));
  const path = `/api/v1/${device.device.token}/attributes/updates?timeout=60000`;
  await Promise.all(connections.map((connection) => connection.send(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`)));
  await eventually(async () => (await pollsHeld()) > others + clients / 2);
  for (const connection of connections) connection.close();
  await eventually(async () => (await pollsHeld()) < others + clients / 2);
});

function pollOn(connection: RawConnection, device: DeviceUser, timeoutMs: number): Promise<RawResponse> {
  const path = `/api/v1/${device.device.token}/attributes/updates?timeout=${timeoutMs}`;
  return connection.ask({ method: 'GET', path }, 2 * longMs);
}

async function pollsHeld(): Promise<number> {
  const text = await sharedEngine().metrics();
  return Number(/^http_polls_held(?:\{[^}]*\})? (\d+)/m.exec(text)?.[1] ?? Number.NaN);
}
