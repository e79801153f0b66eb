import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { anyTime } from '../../test/harness/decode-options.ts';
import { limits } from '../base/limits.ts';
import { decodeTelemetry } from './decode.ts';
import type { DecodeOptions } from './decode-options.ts';
import { DecodeThread } from './decode-thread.ts';
import type { Chunk } from './decoded-chunk.ts';
import { type BlockRow, readBlock } from './read-block.ts';
import { Rows } from './rows.ts';

const now = 1_700_000_000_000;
const order = BigInt(now) << 20n;
const stamp = { order, micros: now * 1000, firstPlace: 0 };
const options: DecodeOptions = { ...anyTime, lenientJson: true, pointsPerMessageMax: 200_000 };
const project = fileURLToPath(new URL('../../', import.meta.url));
const directory = mkdtempSync(join(tmpdir(), 'decode-thread-'));
let entry: URL;

// A thread runs no TypeScript: it gets the file compiled.
beforeAll(() => {
  const config = {
    extends: join(project, 'tsconfig.build.json'),
    compilerOptions: {
      rootDir: join(project, 'src'),
      outDir: directory,
      typeRoots: [join(project, 'node_modules/@types')],
    },
    include: [],
    files: [join(project, 'src/telemetry/decode-worker.ts')],
  };
  writeFileSync(join(directory, 'tsconfig.json'), JSON.stringify(config));
  writeFileSync(join(directory, 'package.json'), '{"type":"module"}');
  execFileSync(join(project, 'node_modules/.bin/tsc'), ['-p', directory]);
  entry = pathToFileURL(join(directory, 'telemetry/decode-worker.js'));
}, 60_000);

afterAll(() => rmSync(directory, { recursive: true }));

const device = { number: 9, tenantId: 'tenant' };

/** As one commit encodes them. */
function read(chunks: Chunk[]): BlockRow[] {
  let firstPlace = 0;
  return chunks.flatMap((chunk) => {
    const rows = readBlock(Buffer.concat(chunk.encode({ ...stamp, firstPlace })));
    firstPlace += chunk.records;
    return rows;
  });
}

const reasonOf = (promise: Promise<unknown>) =>
  promise.then(
    () => 'taken',
    ({ status, reason }) => `${status} ${reason}`,
  );

describe('DecodeThread', () => {
  it('gives the rows of the loop, in chunks', async () => {
    const thread = new DecodeThread(options, { entry });
    const records = Array.from({ length: 1000 }, (_, i) =>
      i % 3 === 0 ? { ts: i, values: { a: i, t: `é${i}` } } : { b: i / 2, c: true },
    );
    const wide = Object.fromEntries(Array.from({ length: 70_000 }, (_, i) => [`key${i}`, i]));
    const body = Buffer.from(JSON.stringify([...records, wide, { a: 1 }]));
    const rows = new Rows();
    decodeTelemetry(body, device, now, rows, options);
    const expected = readBlock(Buffer.concat(rows.encode(stamp)));
    const chunks = await thread.decode(new Uint8Array(body), device, now);
    expect(chunks.map(({ count }) => count)).toEqual([
      limits.frameRowsMax,
      limits.frameRowsMax,
      expected.length - 2 * limits.frameRowsMax,
    ]);
    for (const chunk of chunks) {
      const encoded = Buffer.concat(chunk.encode(stamp)).length;
      expect(Math.abs(chunk.bytes - encoded)).toBeLessThan(200);
    }
    // Compared as text: `toEqual` takes seconds for this many rows.
    const text = (list: BlockRow[]) =>
      list.map(({ seq, ...row }) => `${Object.values(row).join('|')}|${seq > 0}`).join('\n');
    const found = read(chunks);
    expect(text(found) === text(expected)).toBe(true);
    // Records at server time stay in their order over the chunks.
    const places = found.flatMap(({ key, seq }) => (seq > 0 && (key === 'b' || key === 'a') ? [seq] : []));
    expect(places).toEqual([...new Set(places)].sort((a, b) => a - b));
    expect(places).toHaveLength(667);
    await thread.close();
  });

  it('gives messages without ts the time of their arrival', async () => {
    const thread = new DecodeThread(options, { entry });
    const bodies = Array.from(
      { length: 3 },
      () => new Uint8Array(Buffer.from('[{"a":1},{"a":2},{"ts":5,"values":{"a":3}}]')),
    );
    const answers = await Promise.all(bodies.map((body) => thread.decode(body, device, now)));
    const shown = answers.flatMap(read).map(({ ts, seq }) => `${ts} ${seq % 2 ** 24} ${seq > 0}`);
    const expected = [`${now} 0 true`, `${now} 1 true`, '5 0 false'];
    expect(shown).toEqual([...expected, ...expected, ...expected]);
    expect(answers.flatMap(read).every((row) => row.device === 9 && row.order === order)).toBe(true);
    await thread.close();
  });

  it('refuses as the loop does, a full queue, and after close', async () => {
    const thread = new DecodeThread(options, { entry });
    const post = (text: string) => reasonOf(thread.decode(new Uint8Array(Buffer.from(text)), device, now));
    expect(await post('{"a":')).toBe('400 malformed_json');
    expect(await post('{}')).toBe('taken');
    expect(await post(JSON.stringify(Array.from({ length: 200_001 }, () => ({ a: 1 }))))).toBe('413 too_many_points');
    const many = await Promise.all(Array.from({ length: limits.decodeQueueMax + 3 }, () => post('{"a":1}')));
    expect(many.filter((reason) => reason === 'taken')).toHaveLength(limits.decodeQueueMax + 1);
    expect(many.filter((reason) => reason === '503 decode_queue_full')).toHaveLength(2);
    const waiting = post('{"a":1}');
    await thread.close();
    expect(await waiting).toBe('503 shutting_down');
    expect(await post('{}')).toBe('503 shutting_down');
    expect(thread.length).toBe(0);
  });

  it('lets tenants take turns, and makes room for a tenant that has nothing in the queue', async () => {
    const thread = new DecodeThread(options, { entry });
    const order: string[] = [];
    // A turn lasts for this number of bytes.
    const body = '{"a":1}'.padEnd(300_000);
    const post = (tenantId: string) =>
      reasonOf(thread.decode(new Uint8Array(Buffer.from(body)), { number: 9, tenantId }, now)).then((reason) => {
        order.push(`${tenantId} ${reason}`);
      });
    const own = Array.from({ length: limits.decodeQueueMax + 1 }, () => post('a'));
    await Promise.all([...own, post('b')]);
    expect(order[0]).toBe('a 503 decode_queue_full');
    expect(order.indexOf('b taken')).toBeLessThan(4);
    await thread.close();
  });

  it('begins a body when the journal has room for its tenant', async () => {
    const open: { tenant: string; resolve: () => void }[] = [];
    const room = (tenant: string) =>
      tenant === 'free' ? undefined : new Promise<void>((resolve) => open.push({ tenant, resolve }));
    const thread = new DecodeThread(options, { entry, room });
    const order: string[] = [];
    const post = async (tenantId: string) => {
      const body = new Uint8Array(Buffer.from('{"a":1}'.padEnd(600_000)));
      await thread.decode(body, { number: 9, tenantId }, now);
      order.push(tenantId);
    };
    const waiting = ['a', 'a', 'b', 'free'].map(post);
    // A tenant with room does not wait for one without.
    await waiting[3];
    expect(order).toEqual(['free']);
    expect(open.map(({ tenant }) => tenant)).toEqual(['a', 'b']);
    open[1]!.resolve();
    await waiting[2];
    // Room is for one body.
    open[0]!.resolve();
    await waiting[0];
    expect(order).toEqual(['free', 'b', 'a']);
    expect(open.map(({ tenant }) => tenant)).toEqual(['a', 'b', 'a']);
    expect(thread.length).toBe(1);
    open[2]!.resolve();
    await Promise.all(waiting);
    await thread.close();
  });

  it('survives a body that exhausts its memory', async () => {
    const thread = new DecodeThread(options, { entry, heapMegabytesMax: 64 });
    const post = (text: string) => reasonOf(thread.decode(new Uint8Array(Buffer.from(text)), device, now));
    // Blanks and escapes: no part can be copied unchanged.
    const body = `{"a":[${'["\\u0041"], '.repeat(600_000)}1]}`;
    const [poison, next] = await Promise.all([post(body), post('{"a":1}')]);
    expect(poison).toBe('413 message_too_complex');
    expect(next).toBe('taken');
    await thread.close();
  }, 60_000);
});
