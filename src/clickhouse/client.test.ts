/** The promises of the client, tested with a server that answers wrongly or not at all. */
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test, vi } from 'vitest';
import { silentLog } from '../../test/harness/silent-log.ts';
import { Fault } from '../base/errors.ts';
import { openClickHouse } from './client.ts';
import { toClickHouseError } from './errors/clickhouse-error.ts';

/** The sockets of the reads of a client. */
const socketsMax = 32;

async function against(
  listener: RequestListener,
  check: (clickhouse: ReturnType<typeof openClickHouse>) => Promise<void>,
) {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const clickhouse = openClickHouse({ url, user: 'u', password: 'p', database: 'd', log: silentLog });
  try {
    await check(clickhouse);
  } finally {
    await clickhouse.close();
    server.closeAllConnections();
    server.close();
  }
}

test('a reset is retried once where repeating is safe', async () => {
  let requests = 0;
  const bodies: number[] = [];
  const resetFirst: RequestListener = (request, response) => {
    requests += 1;
    if (requests % 2 === 1) return void request.socket.resetAndDestroy();
    let bytes = 0;
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    request.on('end', () => {
      bodies.push(bytes);
      // An insert has no answer.
      response.end(bodies.length === 1 ? '{"a":1}\n' : '');
    });
  };
  await against(resetFirst, async (clickhouse) => {
    expect(await clickhouse.rows('SELECT 1 AS a')).toEqual([{ a: 1 }]);
    await clickhouse.insertBlocks('INSERT INTO t FORMAT Native', Buffer.alloc(300_000));
    expect([requests, bodies[1]]).toEqual([4, 300_000]);
    await expect(clickhouse.exec('DROP TABLE t')).rejects.toMatchObject({ kind: 'transient', connectionLost: true });
    expect(requests).toBe(5);
  });
});

test('a store that is gone when the connection is tried again still counts as a lost connection', async () => {
  const server = createServer((request) => {
    server.close();
    request.socket.resetAndDestroy();
  }).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const clickhouse = openClickHouse({ url, user: 'u', password: 'p', database: 'd', log: silentLog });
  const insert = clickhouse.insertBlocks('INSERT INTO t FORMAT Native', Buffer.alloc(10));
  await expect(insert).rejects.toMatchObject({
    code: 0,
    connectionLost: true,
    message: expect.stringMatching(/REFUSED/),
  });
  await expect(clickhouse.insertBlocks('INSERT INTO t FORMAT Native', Buffer.alloc(10))).rejects.toMatchObject({
    connectionLost: false,
  });
  await clickhouse.close();
});

test('every call ends by its deadline or its signal', async () => {
  await against(
    () => {},
    async (clickhouse) => {
      const start = performance.now();
      await expect(clickhouse.rows('SELECT 1', {}, { timeoutMs: 100 })).rejects.toMatchObject({
        code: 0,
        kind: 'transient',
      });
      const abortSignal = AbortSignal.timeout(100);
      await expect(clickhouse.rows('SELECT 1', {}, { abortSignal })).rejects.toMatchObject({ kind: 'transient' });
      expect(performance.now() - start).toBeLessThan(10_000);
    },
  );
});

test('a read that waits for a free socket ends by its deadline', async () => {
  let requests = 0;
  const silent: RequestListener = () => {
    requests += 1;
  };
  await against(silent, async (clickhouse) => {
    const caller = new AbortController();
    const slow = Array.from({ length: socketsMax }, () =>
      clickhouse.rows('SELECT 1', {}, { abortSignal: caller.signal }).catch((error: Error) => error),
    );
    await vi.waitUntil(() => requests === socketsMax, { timeout: 10_000 });
    await expect(clickhouse.rows('SELECT 2', {}, { timeoutMs: 100 })).rejects.toMatchObject({ timedOut: true });
    caller.abort();
    await Promise.all(slow);
    expect(requests).toBe(socketsMax);
  });
});

test('nothing is sent for a caller that has left', async () => {
  let requests = 0;
  const count: RequestListener = (_, response) => {
    requests += 1;
    response.end();
  };
  await against(count, async (clickhouse) => {
    const abortSignal = AbortSignal.abort();
    const calls = [
      clickhouse.rows('SELECT 1', {}, { abortSignal }),
      clickhouse.exec('DROP TABLE t', {}, { abortSignal }),
      clickhouse.insertBlocks('INSERT INTO t FORMAT Native', Buffer.alloc(10), { abortSignal }),
    ];
    for (const call of calls) await expect(call).rejects.toMatchObject({ kind: 'transient' });
    expect(requests).toBe(0);
  });
});

test('an answer that does not end is given up at the deadline', async () => {
  const beginOnly: RequestListener = (_, response) => {
    response.writeHead(200);
    response.write('{"a":1}\n');
  };
  await against(beginOnly, async (clickhouse) => {
    const calls = [
      clickhouse.rows('SELECT 1', {}, { timeoutMs: 300 }),
      clickhouse.exec('DROP TABLE t', {}, { timeoutMs: 300 }),
      clickhouse.insertBlocks('INSERT INTO t FORMAT Native', Buffer.alloc(10), { timeoutMs: 300 }),
    ];
    const ends = await Promise.allSettled(calls);
    expect(ends).toMatchObject(calls.map(() => ({ status: 'rejected', reason: { timedOut: true } })));
  });
});

test('codes become kinds', async () => {
  const kindOf = async (code: number, text: string) => {
    let kind = '';
    await against(
      (_, response) => response.writeHead(500).end(`Code: ${code}. DB::Exception: ${text}. (SOME_NAME)`),
      async (clickhouse) => {
        kind = ((await clickhouse.rows('SELECT 1').catch(toClickHouseError)) as { kind: string }).kind;
      },
    );
    return kind;
  };
  expect(await kindOf(252, 'Too many parts (3000)')).toBe('transient');
  expect(await kindOf(252, 'Too many partitions for single INSERT block (more than 100)')).toBe('size');
  expect(await kindOf(241, 'Memory limit exceeded')).toBe('size');
  expect(await kindOf(53, 'Type mismatch')).toBe('content');
  expect(await kindOf(243, 'Not enough space')).toBe('transient');
  expect(await kindOf(60, 'Table does not exist')).toBe('transient');
  expect(await kindOf(1001, 'std::filesystem: No space left on device')).toBe('unknown');
});

test('an error of the server has its code, also when its text quotes bytes and has no name at its end', async () => {
  const text = Buffer.concat([
    Buffer.from('Code: 62. DB::Exception: Syntax error (data type): failed at position 4 ('),
    Buffer.from([0, 10, 0xff, 0xfe]),
    Buffer.from('): While executing Native. \n'),
  ]);
  await against(
    (_, response) => response.writeHead(500).end(text),
    async (clickhouse) => {
      const expected = { code: 62, kind: 'unknown' };
      await expect(clickhouse.insertBlocks('INSERT INTO t FORMAT Native', text)).rejects.toMatchObject(expected);
      await expect(clickhouse.exec('SELECT')).rejects.toMatchObject(expected);
      await expect(clickhouse.rows('SELECT')).rejects.toMatchObject(expected);
    },
  );
});

test('an answer that is not whole is an error, not fewer rows', async () => {
  await against(
    (_, response) => response.end('{"a":1}\n{"a":'),
    async (clickhouse) => {
      await expect(clickhouse.rows('SELECT a')).rejects.toMatchObject({ code: 0, kind: 'transient' });
    },
  );
});

test('an answer beyond its cap is cut off and rejects, and the next read works', async () => {
  const endless: RequestListener = (request, response) => {
    if (request.url!.includes('param_small')) return void response.end('{"a":1}\n');
    const line = `{"a":"${'x'.repeat(60_000)}"}\n`;
    const send = () => {
      while (!response.destroyed && response.write(line));
    };
    response.on('drain', send);
    send();
  };
  await against(endless, async (clickhouse) => {
    const options = { answerBytesMax: 1_000_000 };
    const tooLarge = { kind: 'size', answerTooLarge: true, message: expect.stringContaining('1000000 bytes') };
    await expect(clickhouse.rows('SELECT a', {}, options)).rejects.toMatchObject(tooLarge);
    await expect(clickhouse.eachRow('SELECT a', {}, options, () => {})).rejects.toMatchObject(tooLarge);
    expect(await clickhouse.rows('SELECT a', { small: 1 }, options)).toEqual([{ a: 1 }]);
  });
});

test('what a row causes is thrown to the caller of the read, and rows are not taken twice', async () => {
  let asked = 0;
  const listener: RequestListener = (request, response) => {
    asked += 1;
    response.write('{"a":1}\n{"a":2}\n');
    setTimeout(() => request.socket.resetAndDestroy(), 50);
  };
  await against(listener, async (clickhouse) => {
    const fault = new Fault('history_rows', 'too many');
    const failing = clickhouse.eachRow('SELECT a', {}, {}, () => {
      throw fault;
    });
    await expect(failing).rejects.toBe(fault);
    const rows: unknown[] = [];
    const broken = clickhouse.eachRow('SELECT a', {}, {}, (row) => rows.push(row));
    await expect(broken).rejects.toMatchObject({ kind: 'transient' });
    expect([rows, asked]).toEqual([[{ a: 1 }, { a: 2 }], 2]);
  });
});

test('reads of a tenant name their owner to the server', async () => {
  const comments: (string | null)[] = [];
  const listener: RequestListener = (request, response) => {
    comments.push(new URL(request.url!, 'http://x').searchParams.get('log_comment'));
    response.end('{"a":1}\n');
  };
  await against(listener, async (clickhouse) => {
    await clickhouse.rows('SELECT a');
    await clickhouse.readsOf('t1').rows('SELECT a');
    await clickhouse.readsOf('t2').eachRow('SELECT a', {}, {}, () => {});
    await clickhouse.readsOf(null).rows('SELECT a', {}, { settings: { max_threads: 1 } });
  });
  expect(comments).toEqual([null, 'tenant-t1', 'tenant-t2', 'tenant-system']);
});

test('an answer whose last row ends early is an error, in JSON and in RowBinary, and no row of it is kept', async () => {
  const answers = { JSONEachRow: '{"a":"x"}\n{"a":', RowBinary: '\u0001x\u0005yz' };
  const listener: RequestListener = (request, response) => {
    const format = new URL(request.url!, 'http://x').searchParams.get('default_format') as keyof typeof answers;
    response.end(answers[format]);
  };
  const brokenOff = { kind: 'transient', message: 'The answer of ClickHouse broke off.' };
  await against(listener, async (clickhouse) => {
    await expect(clickhouse.rows('SELECT a')).rejects.toMatchObject(brokenOff);
    const rows = clickhouse.binaryRows('SELECT a', {}, {}, (row) => row.text().toString());
    await expect(rows).rejects.toMatchObject(brokenOff);
  });
});

test('rows are whole wherever the pieces of an answer are cut', async () => {
  const text = Buffer.from('{"a":"é😀"}\n{"a":"b/c"}\n');
  const listener: RequestListener = async (request, response) => {
    const cut = Number(new URL(request.url!, 'http://x').searchParams.get('param_cut'));
    response.write(text.subarray(0, cut));
    await new Promise((resolve) => setTimeout(resolve, 2));
    response.end(text.subarray(cut));
  };
  await against(listener, async (clickhouse) => {
    for (let cut = 1; cut < text.length; cut += 1) {
      expect(await clickhouse.rows('SELECT a', { cut })).toEqual([{ a: 'é😀' }, { a: 'b/c' }]);
    }
  });
});
