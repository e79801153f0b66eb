import { afterEach, describe, expect, it } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { ownValue } from './attributes.ts';
import { AttributeWriter, type SharedChange } from './writer.ts';

const client = 1;
const shared = 2;

/** The statements in their order: `insert` with the devices, keys and values of its rows, or another verb. */
interface Statement {
  text: string;
  values: unknown[];
}

let statements: Statement[] = [];
let changes: SharedChange[] = [];
/** The reactions of the store to the next statements; it accepts all later ones. */
let script: ((statement: Statement) => unknown)[] = [];
let version = 0;
/** The failure of the deletes of old rows. */
let pruneOutcome: Error | undefined;

const postgres: Queries = {
  async query<Row>(text: string, values: unknown[] = []): Promise<Row[]> {
    if (text.startsWith('delete from attribute_turn')) {
      if (pruneOutcome) throw pruneOutcome;
      return [];
    }
    const statement = { text, values };
    statements.push(statement);
    await new Promise((resolve) => setTimeout(resolve, 2));
    const outcome = script.shift()?.(statement);
    if (outcome instanceof Error) throw outcome;
    if (Array.isArray(outcome)) return outcome as Row[];
    if (!text.includes('attribute_head')) return [];
    version += 1;
    const devices = [...new Set(String(values[0]).slice(1, -1).split(',').map(Number))];
    return devices.map((device) => ({ device, version })) as Row[];
  },
};

afterEach(() => {
  statements = [];
  changes = [];
  script = [];
  version = 0;
  pruneOutcome = undefined;
});

function open(storedBytesMax?: number): AttributeWriter {
  const onShared = (change: SharedChange) => changes.push(change);
  return new AttributeWriter({
    postgres,
    clock,
    metrics: new Metrics(),
    onShared,
    ...(storedBytesMax && { storedBytesMax }),
  });
}

function entries(values: Record<string, string>): Map<string, TypedValue> {
  return new Map(Object.entries(values).map(([key, text]) => [key, ownValue.string(text)]));
}

function refusal(code: string): Error {
  return Object.assign(new Error(`SQLSTATE ${code}`), { code, severity: 'ERROR' });
}

/** The store refuses every statement that contains the value `poison`. */
function refusePoison(times: number): void {
  const judge = ({ values }: Statement) =>
    values.some((value) => String(value).includes('poison')) ? refusal('22P05') : [];
  script = Array.from({ length: times }, () => judge);
}

it('stores a write although another host deletes the old rows of turns at the same moment', async () => {
  pruneOutcome = refusal('40P01');
  await open().save(2, client, entries({ a: 'x' }));
  // An unhandled error would end the process.
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(statements).toHaveLength(1);
});

describe('batches', () => {
  it('puts what one turn brings into one statement', async () => {
    const writer = open();
    await Promise.all([2, 4, 6].map((device) => writer.save(device, client, entries({ a: 'x', b: 'y' }))));
    expect(statements).toHaveLength(1);
    expect(statements[0]!.values[0]).toBe('{2,2,4,4,6,6}');
    expect(statements[0]!.values[2]).toBe('{"a","b","a","b","a","b"}');
  });

  it('gathers what comes while a statement runs', async () => {
    const writer = open();
    const first = writer.save(2, client, entries({ a: '1' }));
    await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    const others = Array.from({ length: 50 }, (_, i) => writer.save(2, client, entries({ [`k${i}`]: '1' })));
    await Promise.all([first, ...others]);
    expect(statements).toHaveLength(2);
  });

  it('holds each key once, with its last value', async () => {
    const writer = open();
    await Promise.all(['1', '2', '3'].map((text) => writer.save(2, client, entries({ a: text, b: text }))));
    expect(statements[0]!.values.slice(2, 5)).toEqual(['{"a","b"}', '{4,4}', '{"3","3"}']);
  });

  it('carries quotes, backslashes, braces and the word NULL', async () => {
    const writer = open();
    await writer.save(2, client, entries({ 'a"\\': '{"x":"\\"",NULL}', b: 'NULL' }));
    expect(statements[0]!.values[2]).toBe('{"a\\"\\\\","b"}');
    expect(statements[0]!.values[4]).toBe('{"{\\"x\\":\\"\\\\\\"\\",NULL}","NULL"}');
  });

  it('keeps the order of saves and removals of a device', async () => {
    const writer = open();
    const done: string[] = [];
    await Promise.all([
      writer.save(2, client, entries({ a: '1' })).then(() => done.push('save')),
      writer.remove(2, client, ['a']).then(() => done.push('remove')),
      writer.save(2, client, entries({ a: '2' })).then(() => done.push('save again')),
    ]);
    const verbs = statements.map(({ text }) => /(insert into|delete from) attribute /.exec(text)?.[1]);
    expect(verbs).toEqual(['insert into', 'delete from', 'insert into']);
    expect(done).toEqual(['save', 'remove', 'save again']);
  });

  it('takes a save that is made in the answer to another', async () => {
    const writer = open();
    for (let i = 0; i < 50; i += 1) await writer.save(2, client, entries({ a: String(i) }));
    expect(statements).toHaveLength(50);
  });
});

describe('turns', () => {
  const wide = (n: number) =>
    entries(Object.fromEntries(Array.from({ length: 500 }, (_, key) => [`${n}-${key}`, 'x'])));
  const devicesOf = ({ values }: Statement) => new Set(String(values[0]).slice(1, -1).split(',').map(Number));

  it('stores the write of a tenant after one write of another, however many of that one wait', async () => {
    const writer = open();
    const running = writer.save(2, client, wide(0), 'first');
    await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    const flood = Array.from({ length: 40 }, (_, i) => writer.save(4 + 2 * i, client, wide(i), 'first'));
    const own = writer.save(1000, client, entries({ a: '1' }), 'second');
    await Promise.all([running, own, ...flood]);
    expect(statements.slice(1, 3).map(devicesOf)).toEqual([new Set([4]), new Set([1000])]);
    expect(statements.length).toBeGreaterThan(10);
  });

  it('puts small writes of several tenants into one statement', async () => {
    const writer = open();
    const tenants = ['first', 'second', 'third'];
    await Promise.all(tenants.map((tenant, i) => writer.save(2 * i, client, entries({ a: '1' }), tenant)));
    expect(statements).toHaveLength(1);
  });

  it('gives removals of a tenant the turns of that tenant, and counts each as a statement of its own', async () => {
    const writer = open();
    const running = writer.save(2, client, wide(0), 'first');
    await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    const done: string[] = [];
    const note = (name: string) => () => done.push(name);
    const removals = Array.from({ length: 30 }, (_, i) =>
      writer.remove(4 + 2 * i, client, ['a'], 'first').then(note('removal')),
    );
    // These writes of another tenant do not fit into one statement with each other.
    const own = Array.from({ length: 3 }, (_, i) =>
      writer.save(1000 + 2 * i, client, wide(i), 'second').then(note('second')),
    );
    // A caller without a tenant has turns of its own.
    const none = writer.save(2000, client, entries({ a: '1' })).then(note('none'));
    await Promise.all([running, ...removals, ...own, none]);
    expect(done.indexOf('none')).toBeLessThan(5);
    expect(done.indexOf('second')).toBeLessThan(5);
    expect(done.filter((name) => name === 'removal')).toHaveLength(30);
  });

  it('lets no tenant fill with removals what waits, and none of the writes of the server wait for its share', async () => {
    const writer = open();
    const keys = Array.from({ length: 100 }, (_, i) => `${'k'.repeat(60)}${i}`);
    const outcomes = Array.from({ length: 1_000 }, (_, i) =>
      writer.remove(2 * i, client, keys, 'first').then(
        () => 'done',
        ({ reason }) => reason,
      ),
    );
    const server = writer.save(4_000, client, entries({ a: '1' }), 'first', 'server');
    const other = writer.remove(4_002, client, keys, 'second');
    await Promise.all([server, other]);
    const reasons = await Promise.all(outcomes);
    expect(new Set(reasons)).toEqual(new Set(['done', 'attributes_waiting_share']));
  }, 20_000);

  it('takes a removal of very many keys', async () => {
    const keys = Array.from({ length: 30_000 }, (_, i) => `k${i}`);
    expect(await open().remove(2, client, keys, 'first')).toEqual([]);
  });

  it('keeps the order of the writes of a device that name a tenant and those that name none', async () => {
    const writer = open();
    const running = writer.save(2, client, wide(0), 'first');
    await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    const flood = Array.from({ length: 10 }, (_, i) => writer.save(4 + 2 * i, client, wide(i), 'first'));
    const done: string[] = [];
    const writes = [
      writer.save(1000, client, entries({ a: '1' }), 'first').then(() => done.push('of a device')),
      writer.remove(1000, client, ['a']).then(() => done.push('removal')),
      writer.save(1000, client, entries({ a: '2' })).then(() => done.push('of the server')),
    ];
    await Promise.all([running, ...flood, ...writes]);
    expect(done).toEqual(['of a device', 'removal', 'of the server']);
  });
});

describe('shared attributes', () => {
  it('sends each device its own keys with the version, after the commit', async () => {
    const writer = open();
    await Promise.all([
      writer.save(2, shared, entries({ a: '1' })),
      writer.save(3, shared, entries({ b: '2' })),
      writer.save(2, shared, entries({ c: '3', a: '4' })),
    ]);
    expect(changes).toEqual([
      { device: 2, version: 1, changed: entries({ a: '4', c: '3' }), deleted: undefined },
      { device: 3, version: 1, changed: entries({ b: '2' }), deleted: undefined },
    ]);
  });

  it('announces only keys that were really removed, in the order of the call', async () => {
    script = [
      () => [
        { key: 'k', version: 9 },
        { key: 'm', version: 9 },
      ],
    ];
    expect(await open().remove(2, shared, ['m', 'unknown', 'k'])).toEqual(['m', 'k']);
    expect(changes).toEqual([{ device: 2, version: 9, changed: undefined, deleted: ['m', 'k'] }]);
  });
});

describe('faults', () => {
  it('singles out what the database refuses, and stores the rest', async () => {
    refusePoison(20);
    const writer = open();
    const outcomes = await Promise.allSettled(
      Array.from({ length: 9 }, (_, i) => writer.save(2 * i, client, entries({ a: i === 5 ? 'poison' : 'fine' }))),
    );
    expect(outcomes.map(({ status }) => status).filter((status) => status === 'rejected')).toHaveLength(1);
    const { reason } = outcomes[5] as PromiseRejectedResult;
    expect([reason instanceof Fault, reason.status]).toEqual([true, 400]);
  });

  it('runs again at once after a deadlock', async () => {
    script = [() => refusal('40P01'), () => refusal('40001')];
    await open().save(2, client, entries({ a: '1' }));
    expect(statements).toHaveLength(3);
    expect(statements[2]).toEqual(statements[0]);
  });

  it('repeats what may have been committed as the same turn, and gives the next write a new one', async () => {
    script = [() => unavailable('postgres_away', 'away')];
    const writer = open();
    await writer.save(2, client, entries({ a: '1' }));
    await writer.save(2, client, entries({ a: '2' }));
    expect(statements).toHaveLength(3);
    expect(statements[1]).toEqual(statements[0]);
    const turns = statements.map(({ values }) => values.slice(6));
    expect(turns[1]).toEqual(turns[0]);
    expect(turns[2]).toEqual([turns[0]![0], (turns[0]![1] as number) + 1]);
  });

  it('answers 503 while the database stays unavailable, and continues afterwards', async () => {
    let away = true;
    const judge = () => (away ? unavailable('postgres_away', 'away') : []);
    script = Array.from({ length: 100 }, () => judge);
    const writer = open();
    await expect(writer.save(2, client, entries({ a: '1' }))).rejects.toMatchObject({ status: 503 });
    away = false;
    await writer.save(2, client, entries({ a: '1' }));
  });

  it('refuses above its cap at once', async () => {
    const writer = open();
    const many = new Map(Array.from({ length: 1000 }, (_, i) => [`k${i}`, ownValue.long(i)] as const));
    const saves = Array.from({ length: limits.attributeRowsWaitingMax / 1000 }, (_, i) =>
      writer.save(2 * i, client, many),
    );
    await expect(writer.save(4, client, entries({ a: '1' }))).rejects.toMatchObject({ reason: 'attributes_waiting' });
    await Promise.all(saves);
    await writer.save(4, client, entries({ a: '1' }));
  });

  it('keeps the waiting bytes of one device below its share, and takes those of another', async () => {
    const writer = open();
    const large = entries({ a: 'x'.repeat(1024 * 1024) });
    const saves = [1, 2, 3].map(() => writer.save(2, client, large));
    await expect(writer.save(2, client, large)).rejects.toMatchObject({
      status: 429,
      reason: 'attributes_waiting_share',
    });
    await Promise.all([...saves, writer.save(4, client, large)]);
    await writer.save(2, client, large);
  });

  it('keeps what waits of one tenant below its share, however many devices send, and takes that of another', async () => {
    const writer = open();
    const large = entries({ a: 'x'.repeat(1024 * 1024) });
    const save = (device: number, tenantId: string) =>
      writer.save(device, client, large, tenantId).then(
        () => 'stored',
        ({ reason }: Fault) => reason,
      );
    const outcomes = await Promise.all(
      Array.from({ length: 60 }, (_, device) => save(device, 'orchard')).concat(save(60, 'mill')),
    );
    expect(outcomes.filter((outcome) => outcome === 'attributes_waiting_share').length).toBeGreaterThan(10);
    expect([outcomes[0], outcomes.at(-1)]).toEqual(['stored', 'stored']);
    expect(await save(59, 'orchard')).toBe('stored');
  });

  it('bounds what a device stores, and asks the store only now and then', async () => {
    let stored = 0;
    const sums: number[] = [];
    const answer = ({ text, values }: Statement) => {
      if (!text.includes('octet_length')) return [];
      sums.push(values[0] as number);
      return [{ bytes: stored }];
    };
    script = Array.from({ length: 1_000 }, () => answer);
    const writer = open(8_000);
    const save = (device = 2) =>
      writer.save(device, client, entries({ a: 'x'.repeat(35) })).then(
        () => 'stored',
        ({ status, reason }: Fault) => `${status} ${reason}`,
      );
    for (let n = 0; n < 10; n += 1) expect(await save()).toBe('stored');
    expect(sums).toEqual([]);
    expect(await save()).toBe('stored');
    expect(sums).toEqual([2]);
    stored = 8_000;
    for (let n = 0; n < 10; n += 1) expect(await save()).toBe('stored');
    expect(await save()).toBe('400 attributes_stored');
    expect(await save()).toBe('400 attributes_stored');
    expect(await save(3)).toBe('stored');
    expect(sums).toEqual([2, 2]);
    stored = 100;
    await writer.remove(2, client, ['b']);
    expect(await save()).toBe('stored');
    expect(sums).toEqual([2, 2, 2]);
  });

  it('keeps the order of calls while the store is asked for the sum', async () => {
    const writer = open(80);
    const done: string[] = [];
    await Promise.all([
      writer.save(2, client, entries({ a: '1' })).then(() => done.push('save')),
      writer.remove(2, client, ['a']).then(() => done.push('remove')),
      writer.save(2, client, entries({ a: '2' })).then(() => done.push('save again')),
    ]);
    expect(done).toEqual(['save', 'remove', 'save again']);
  });
});
