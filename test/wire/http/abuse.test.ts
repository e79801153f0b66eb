/**
 * Bytes that only attackers send (RFC 9112 section 6.3): they are refused and the connection is closed, no hidden
 * request runs, and other clients notice nothing.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { RawConnection, withConnection } from '../../harness/raw.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { expectError, withPoster } from '../../harness/stored.ts';

const port = () => sharedEngine().address.port;

/** A request that is hidden in another one, and must never run. */
function smuggled(token: string): string {
  const body = '{"smuggled":1}';
  return `POST /api/v1/${token}/telemetry HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
}

for (const [name, headers] of [
  ['two differing Content-Length headers', 'Content-Length: 7\r\nContent-Length: 200'],
  ['two differing Content-Length headers, the longer first', 'Content-Length: 200\r\nContent-Length: 7'],
  ['Transfer-Encoding beside Content-Length', 'Content-Length: 7\r\nTransfer-Encoding: chunked'],
  ['Transfer-Encoding: xchunked', 'Transfer-Encoding: xchunked\r\nContent-Length: 7'],
  ['Transfer-Encoding: xchunked alone', 'Transfer-Encoding: xchunked'],
  ['a chunk size beyond 64 bits', 'Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff'],
  ['a space before the colon', 'Content-Length : 7'],
  ['a negative Content-Length', 'Content-Length: -7'],
] as const) {
  test(`${name}: the connection closes and no second request runs`, () =>
    withPoster(async (poster) => {
      const head = `POST /api/v1/${poster.device.token}/telemetry HTTP/1.1\r\nHost: x\r\n`;
      await withConnection(port(), async (connection) => {
        await connection.send(`${head}${headers}\r\n\r\n{"a":1}${smuggled(poster.device.token)}`);
        const answer = await connection.untilClosed();
        expect(answer.match(/HTTP\/1\.1 2\d\d/g) ?? []).toEqual([]);
      });
      expect(await poster.keys()).toEqual([]);
    }));
}

for (const [name, first] of [
  ['OPTIONS with an ambiguous length', 'OPTIONS /api/device HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked'],
  ['OPTIONS of an unknown path with an ambiguous length', 'OPTIONS /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x'],
  ['a method that is no token', '{"a":1}POST /api/device HTTP/1.1\r\nHost: x'],
  ['a method that is no token, of an unknown path', '"PUT /none HTTP/1.1\r\nHost: x'],
] as const) {
  test(`${name}: the connection closes and the request after it does not run`, () =>
    withPoster(async (poster) => {
      await withConnection(port(), async (connection) => {
        await connection.send(`${first}\r\n\r\n${smuggled(poster.device.token)}`);
        expect(await connection.untilClosed()).toBe('');
      });
      expect(await poster.keys()).toEqual([]);
    }));
}

test('an 8 kB header, 101 headers and HTTP/1.0 are refused and closed', () =>
  withPoster(async (poster) => {
    const path = `/api/v1/${poster.device.token}/telemetry`;
    const many = Array.from({ length: 101 }, (_, n) => `X-H${n}: ${n}\r\n`).join('');
    for (const request of [
      `POST ${path} HTTP/1.1\r\nHost: x\r\nX-Long: ${'a'.repeat(20_000)}\r\nContent-Length: 7\r\n\r\n{"a":1}`,
      `POST ${path} HTTP/1.1\r\nHost: x\r\n${many}Content-Length: 7\r\n\r\n{"a":1}`,
      `POST ${path} HTTP/1.0\r\nContent-Length: 7\r\n\r\n{"a":1}`,
    ]) {
      await withConnection(port(), async (connection) => {
        await connection.send(request);
        const answer = await connection.untilClosed();
        if (answer !== '') expect(answer).toMatch(/^HTTP\/1\.[01] (400|431|505)/);
      });
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('a pipelined request closes the connection without mixing answers', () =>
  withPoster(async (poster) => {
    const one = (n: number) => {
      const body = `{"n":${n}}`;
      return `POST /api/v1/${poster.device.token}/telemetry HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    };
    await withConnection(port(), async (connection) => {
      await connection.send(Array.from({ length: 100 }, (_, n) => one(n)).join(''));
      const answers = (await connection.untilClosed()).match(/HTTP\/1\.1 \d\d\d/g) ?? [];
      for (const answer of answers) expect(answer).toBe('HTTP/1.1 200');
      expect(answers.length).toBeLessThanOrEqual(100);
    });
    await poster.accept('{"after":1}');
    expect(await poster.value('after')).toBe('1');
  }));

test('a trailer ends the connection, and no request after it runs', () =>
  withPoster(async (poster) => {
    const { token } = poster.device;
    const head = `POST /api/v1/${token}/telemetry HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n`;
    await withConnection(port(), async (connection) => {
      await connection.send(`${head}7\r\n{"a":1}\r\n0\r\nX-Sum: 1\r\n\r\n${smuggled(token)}`);
      await connection.untilClosed();
    });
    await poster.accept('{"after":1}');
    expect(await poster.value('after')).toBe('1');
    expect(await poster.keys()).not.toContain('smuggled');
  }));

test('senders that drip header bytes are closed, others are served', async () => {
  const slow = await Promise.all(Array.from({ length: 50 }, () => RawConnection.open(port())));
  const startedAt = performance.now();
  await withPoster(async (poster) => {
    for (const byte of 'POST /api/v1/abc') {
      for (const connection of slow) await connection.send(byte);
      await poster.accept('{"a":1}');
      await sleep(1_000);
      if (slow.every((connection) => connection.closed)) break;
    }
  });
  await Promise.all(slow.map((connection) => connection.untilClosed(5_000)));
  expect(performance.now() - startedAt).toBeLessThan(20_000);
}, 40_000);

test('random tokens are 401 and do not harm a valid device of the same address', () =>
  withPoster(async (poster) => {
    await withConnection(port(), async (connection) => {
      for (let n = 0; n < 500; n += 1) {
        const answer = await connection.ask({ path: `/api/v1/guess-${n}-${Math.random()}/telemetry`, body: '{"a":1}' });
        expectError(answer, 401);
      }
    });
    await poster.accept('{"a":1}');
  }));

test('a client that disconnects in the middle of its body harms no other client', () =>
  withPoster(async (poster) => {
    for (let n = 0; n < 20; n += 1) {
      await withConnection(port(), async (connection) => {
        await connection.send(
          `POST /api/v1/${poster.device.token}/telemetry HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"half":`,
        );
        if (n % 2 === 0) connection.socket.resetAndDestroy();
      });
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('headers of 9 kB are 431 in the error shape', () =>
  withPoster(async (poster) => {
    const headers = { 'X-Long': 'a'.repeat(9_000) };
    expect(expectError(await poster.post('{"a":1}', headers), 431)).toContain('8192');
    await poster.connection.untilClosed();
  }));
