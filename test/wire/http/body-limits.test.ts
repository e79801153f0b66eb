/** Limits of sizes hold for the bytes that arrive, whether the size was announced or not (docs/http.md#limits). */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { decodeTelemetry } from '../../../src/telemetry/decode.ts';
import { Rows } from '../../../src/telemetry/rows.ts';
import { cpuMs } from '../../harness/cpu-time.ts';
import { anyTime } from '../../harness/decode-options.ts';
import { leastMs } from '../../harness/least-time.ts';
import { RawConnection, requestBytes, withConnection } from '../../harness/raw.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { expectError, withPoster } from '../../harness/stored.ts';
import { withWorkers } from '../../harness/workers.ts';

const bodyBytesMax = 52_428_800;

test('an announced body one byte over the limit is 413 without being read', () =>
  withPoster(async (poster) => {
    await poster.connection.send(
      requestBytes({
        path: `/api/v1/${poster.device.token}/telemetry`,
        headers: { 'Content-Length': String(bodyBytesMax + 1) },
      }),
    );
    const message = expectError(await poster.connection.response(), 413);
    expect(message).toContain(String(bodyBytesMax));
  }));

test('ten gigabytes announced are 413 at once', () =>
  withPoster(async (poster) => {
    await poster.connection.send(
      requestBytes({
        path: `/api/v1/${poster.device.token}/telemetry`,
        headers: { 'Content-Length': '10737418240' },
      }),
    );
    expectError(await poster.connection.response(2_000), 413);
  }));

test('a chunked body is 413 when the limit is passed', () =>
  withPoster(async (poster) => {
    await poster.connection.send(
      requestBytes({
        path: `/api/v1/${poster.device.token}/telemetry`,
        headers: { 'Transfer-Encoding': 'chunked' },
      }),
    );
    const size = 1024 * 1024;
    const chunk = Buffer.concat([
      Buffer.from(`${size.toString(16)}\r\n`),
      Buffer.alloc(size, 0x20),
      Buffer.from('\r\n'),
    ]);
    for (let n = 0; n < 51 && !poster.connection.closed; n += 1) await poster.connection.send(chunk);
    expectError(await poster.connection.response(), 413);
  }));

test.each(['chunked', 'Chunked'])('a %s body below the limit is stored', (coding) =>
  withPoster(async (poster) => {
    const answer = await poster.connection.ask({
      path: `/api/v1/${poster.device.token}/telemetry`,
      headers: { 'Transfer-Encoding': coding },
      body: '5\r\n{"a":\r\n2\r\n1}\r\n0\r\n\r\n',
    });
    expect(answer.status).toBe(200);
    expect(await poster.value('a')).toBe('1');
  }),
);

test('a body in many small pieces is one message', () =>
  withPoster(async (poster) => {
    const bytes = requestBytes({ path: `/api/v1/${poster.device.token}/telemetry`, body: '{"pieces":"all of them"}' });
    for (const byte of bytes) {
      await poster.connection.send(Buffer.of(byte));
      if (byte % 16 === 0) await sleep(1);
    }
    expect((await poster.connection.response()).status).toBe(200);
    expect(await poster.value('pieces')).toBe('"all of them"');
  }));

/** A name that is repeated is rare, so its record is read by the exact reader: a second of work for one point. */
const slowToDecode = Buffer.from(`{${'"n":1,'.repeat(5_000_000)}"n":2}`);

/** Returns the milliseconds of processor time that this body costs the process that decodes it. */
function decodingMs(): number {
  const times = [1, 2].map(() => {
    const before = cpuMs();
    decodeTelemetry(slowToDecode, { number: 1 }, Date.now(), new Rows(), anyTime);
    return cpuMs() - before;
  });
  return Math.min(...times);
}

test('a body above a quarter megabyte is decoded without holding up others', () =>
  withPoster(async (poster) => {
    const { port } = sharedEngine().address;
    const path = `/api/v1/${poster.device.token}/telemetry`;
    // A thread decodes the body while its worker answers others. A worker that decodes it answers nothing meanwhile.
    const boundMs = decodingMs() / 2;
    const longestPause = () =>
      withWorkers(port, ([sender]) =>
        withWorkers(port, async ([other]) => {
          let isDecoded = false;
          const decoding = sender!.ask({ path, body: slowToDecode }).finally(() => {
            isDecoded = true;
          });
          let longestMs = 0;
          while (!isDecoded) {
            const asked = performance.now();
            expect((await other!.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
            longestMs = Math.max(longestMs, performance.now() - asked);
          }
          expect((await decoding).status).toBe(200);
          return longestMs;
        }),
      );
    expect(await leastMs(boundMs, longestPause)).toBeLessThan(boundMs);
    expect(await poster.value('n')).toBe('2');
  }));

test('a body of many keys above a quarter megabyte is stored', () =>
  withPoster(async (poster) => {
    const values = Object.fromEntries(Array.from({ length: 40_000 }, (_, n) => [`key-${n % 1000}-${n}`, n]));
    await poster.accept(JSON.stringify({ ts: Date.now(), values }));
    expect(await poster.value('key-999-39999')).toBe('39999');
  }));

test('a body of 40 MiB is stored, in the first request of a device too', () =>
  withPoster(async (poster) => {
    const body = Buffer.alloc(40 * 1024 * 1024, 0x20);
    for (const [n, text] of ['{"a":1}', '{"a":2}'].entries()) {
      body.write(text);
      const answer = await poster.post(body);
      expect([n, answer.status, answer.body.toString()]).toEqual([n, 200, '']);
    }
    await poster.points('a', undefined, 2);
  }));

test('a sender without a token is refused before its body ends, at any announced length', async () => {
  for (const path of ['/api/v1/nobody/telemetry', '/api/v1/nobody/attributes', '/api/v1/nobody/rpc', '/api/device']) {
    await withConnection(sharedEngine().address.port, async (connection) => {
      const head = requestBytes({ path, headers: { 'Content-Length': '60000', 'Content-Type': 'application/json' } });
      // The connection stays usable when the rest of the body, which is skipped, comes soon.
      for (let n = 0; n < 2; n += 1) {
        await connection.send(Buffer.concat([head, Buffer.from('{')]));
        await sleep(50);
        await connection.send(Buffer.alloc(59_999, 0x20));
        const answer = await connection.response();
        expectError(answer, 401);
        if (answer.headers.get('connection') === 'close') return;
        expect((await connection.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
      }
      await connection.send(Buffer.concat([head, Buffer.from('{')]));
      expectError(await connection.response(), 401);
      await connection.send(Buffer.alloc(59_999, 0x20));
      expect(await connection.untilClosed()).toBe('');
    });
  }
});

test('a body of any size is refused without a reset, though its client sends all of it before it reads', () =>
  withPoster(async ({ device }) => {
    const requests = [
      { path: `/api/v1/${device.token}/telemetry`, status: 413 },
      { path: '/api/v1/nobody/telemetry', status: 401 },
      { path: '/api/v1/nothing/nothing', status: 404 },
    ];
    for (const { path, status } of requests) {
      for (const Connection of ['keep-alive', 'close']) {
        await withConnection(sharedEngine().address.port, async (connection) => {
          const errors: Error[] = [];
          connection.socket.on('error', (error) => errors.push(error));
          const bytes = bodyBytesMax + (status === 401 ? 0 : 1);
          const headers = { 'Content-Length': String(bytes), Connection };
          await connection.send(requestBytes({ path, headers }));
          const piece = Buffer.alloc(1024 * 1024, 0x20);
          for (let sent = 0; sent < bytes; sent += piece.length) {
            await connection.send(piece.subarray(0, bytes - sent));
          }
          expectError(await connection.response(), status);
          expect(errors).toEqual([]);
        });
      }
    }
  }));

test('a body that is too large is answered at its end, so that a client that is still sending reads the answer', () =>
  withPoster(async ({ connection, device }) => {
    const size = 1024 * 1024 + 1;
    const head = requestBytes({
      path: `/api/v1/${device.token}/attributes`,
      headers: { 'Content-Length': String(size) },
    });
    for (let n = 0; n < 2; n += 1) {
      await connection.send(head);
      // A server that answers at the head closes the connection under these bytes.
      for (let sent = 0; sent < size; sent += 65_536) {
        await connection.send(Buffer.alloc(Math.min(65_536, size - sent), 0x20));
      }
      expectError(await connection.response(), 413);
    }
    expect((await connection.ask({ method: 'GET', path: '/livez' })).status).toBe(200);
  }));

test('bodies that are announced and do not come leave room for those of others', () =>
  withPoster(async (slow) => {
    const open: RawConnection[] = [];
    try {
      for (let n = 0; n < 12; n += 1) {
        const connection = await RawConnection.open(sharedEngine().address.port);
        open.push(connection);
        const headers = { 'Content-Length': String(bodyBytesMax) };
        const head = requestBytes({ path: `/api/v1/${slow.device.token}/telemetry`, headers });
        await connection.send(Buffer.concat([head, Buffer.from('{')]));
      }
      await withPoster(async (poster) => {
        const body = `{"s":"${'x'.repeat(4000)}"}`;
        for (let n = 0; n < 10; n += 1) {
          const bytes = requestBytes({ path: `/api/v1/${poster.device.token}/telemetry`, body });
          await poster.connection.send(bytes.subarray(0, 1000));
          await sleep(5);
          await poster.connection.send(bytes.subarray(1000));
          expect((await poster.connection.response()).status).toBe(200);
        }
      });
      expect(open.filter(({ closed }) => closed)).toEqual([]);
    } finally {
      for (const connection of open) connection.close();
    }
  }));

test('a REST body has at most 1 MiB, and that of a sign-in much less', async () => {
  const api = sharedEngine();
  const large = (bytes: number) => `{"name":"large","x":[${'1,'.repeat(bytes / 2)}1]}`;
  const refused = await api.send('POST', '/api/customer', large(1_100_000));
  expect([refused.status, await refused.text()]).toEqual([413, expect.stringContaining('1048576')]);
  const unsigned = await fetch(`${api.http}/api/auth/login`, { method: 'POST', body: ' '.repeat(20_000) });
  expect(unsigned.status).toBe(413);
});
