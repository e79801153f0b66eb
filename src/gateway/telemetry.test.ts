/**
 * The rows of a gateway's message, the children that are refused, and that the fast reader agrees with the exact one.
 */
import fc from 'fast-check';
import { describe, expect, it, vi } from 'vitest';
import { anyTime as options } from '../../test/harness/decode-options.ts';
import { deviceRow } from '../../test/harness/device-row.ts';
import { newTroubles } from '../../test/harness/troubles.ts';
import { systemClock } from '../base/clock.ts';
import { ErrorCode, Fault } from '../base/errors.ts';
import { CachedDevice, type DeviceRow } from '../device/model/cached-device.ts';
import { readBlock } from '../telemetry/read-block.ts';
import { Rows } from '../telemetry/rows.ts';
import { Kind } from '../value/typed.ts';
import { Gateway, type GatewayDeps } from './gateway.ts';
import { childrenOf, GatewayDecoder, GatewayTelemetry, unknownChild } from './telemetry.ts';

const now = 1_700_000_000_000;
const order = BigInt(now) << 20n;
const stamp = { order, micros: now * 1000, firstPlace: 0 };
const names = ['', 'boolean', 'long', 'double', 'string', 'json'];

/** A gateway with these children connected, numbered from 1 by their places in the list. */
async function gatewayWith(children: string[]): Promise<Gateway> {
  const deps = {
    sessions: { open: (row: DeviceRow) => ({ device: new CachedDevice(row), end: () => {} }), get: () => undefined },
    names: {
      find: async (_: unknown, wanted: { name: string }[]) =>
        new Map(wanted.map(({ name }) => [name, deviceRow(children.indexOf(name) + 1, name)])),
    },
    childrenMax: 0,
    troubles: newTroubles(systemClock),
    monotonic: () => 0,
  };
  const link = { attributes: () => true, rpc: () => true, dropped: () => {} };
  const gateway = new Gateway(deps as unknown as GatewayDeps, new CachedDevice(deviceRow(1000, 'hub')), link);
  await connect(gateway, children);
  return gateway;
}

function connect(gateway: Gateway, children: string[]): Promise<void> {
  return new Promise((resolve) =>
    gateway.run(
      children.map((name) => ({ name, type: '' })),
      () => resolve(),
    ),
  );
}

interface Outcome {
  /** `device key@ts kind value`, the server's time as `now`. */
  rows: string[];
  /** The answer to the sender: '' or `status text`. */
  answer: string;
}

const decoder = new GatewayDecoder({ options, touch: () => {}, admission: undefined });

function decode(
  gateway: Gateway,
  body: string | Uint8Array,
  way: 'fast' | 'careful' = 'fast',
  decoding = decoder,
): Outcome {
  const rows = new Rows(1);
  let answer = '';
  const waiter = {
    acknowledge: () => {},
    refuse: (fault: Fault) => {
      answer = `${fault.status} ${fault.message}`;
    },
  };
  const message = new GatewayTelemetry(gateway, waiter);
  const by = way === 'fast' ? decoding.decode : decoding.decodeExactly;
  try {
    const count = by(Buffer.from(body), message, now, rows);
    message.acknowledge();
    const read = readBlock(Buffer.concat(rows.encode(stamp)));
    expect(read.length).toBe(count);
    return {
      answer,
      rows: read.map(({ device, key, ts, kind, num, int, text }) => {
        const value = kind === Kind.double ? num : kind <= Kind.long ? int : JSON.stringify(text);
        return `${device} ${key}@${ts === now ? 'now' : ts} ${names[kind]} ${value}`;
      }),
    };
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    expect(rows.count).toBe(0);
    return { rows: [], answer: `${error.status} whole: ${error.message}` };
  }
}

const silent = { acknowledge: () => {}, refuse: () => {} };
const hub = await gatewayWith(['A', 'B', 'C', 'Gerät', 'say "hi"', '__proto__']);

function both(body: string | Uint8Array, rows: string[], answer: string | RegExp = ''): void {
  for (const way of ['fast', 'careful', 'fast'] as const) {
    const outcome = decode(hub, body, way);
    expect(outcome.rows, `${way}: ${body}`).toEqual(rows);
    if (typeof answer === 'string') expect(outcome.answer, `${way}: ${body}`).toBe(answer);
    else expect(outcome.answer, `${way}: ${body}`).toMatch(answer);
  }
}

describe('a message of a gateway', () => {
  it('is read as lenient JSON where that is on', () => {
    const lenient = new GatewayDecoder({
      options: { ...options, lenientJson: true },
      touch: () => {},
      admission: undefined,
    });
    const read = (body: string) => decode(hub, body, 'fast', lenient);
    expect(read("{A:[{ts:1,values:{a:1}}],'B':[{b:2,},], // end")).toEqual({
      rows: [],
      answer: '400 whole: The body is not valid JSON: expected a member name at its end.',
    });
    expect(read("{A:[{ts:1,values:{a:1}}],'B':[{b:2,},],} // end")).toEqual({
      rows: ['1 a@1 long 1', '2 b@now long 2'],
      answer: '',
    });
    expect(read("{A:[5],'B':[{b:2}]}").rows).toEqual(['2 b@now long 2']);
    expect(() => lenient.decode(Buffer.from('{X:[]}'), new GatewayTelemetry(hub, silent), now, new Rows(1))).toThrow(
      unknownChild,
    );
  });

  it('finds a renamed child by its new name only, however often it was found by the former one', async () => {
    const gateway = await gatewayWith(['A', 'B']);
    const rowsOf = (name: string) => decode(gateway, `{"B":[{"b":1}],${name}:[{"a":1}]}`).rows[1];
    expect([rowsOf('"A"'), rowsOf('"A"'), rowsOf('"\\u0041"'), rowsOf('"A"')]).toEqual(
      Array.from({ length: 4 }, () => '1 a@now long 1'),
    );
    gateway.child('A')!.device.refresh({ ...deviceRow(1, 'Z'), version: 2 });
    for (const name of ['"A"', '"\\u0041"']) expect(rowsOf(name)).toBeUndefined();
    expect([rowsOf('"Z"'), rowsOf('"Z"')]).toEqual(['1 a@now long 1', '1 a@now long 1']);
    gateway.disconnect('Z');
    expect(rowsOf('"Z"')).toBeUndefined();
  });

  it('finds each child whatever followed the child before it last time', async () => {
    const gateway = await gatewayWith(['A', 'B', 'C']);
    const devices = (...order: string[]) => {
      const body = `{${order.map((name) => `"${name}":[{"k":1}]`).join(',')}}`;
      return decode(gateway, body).rows.map((row) => Number(row.split(' ')[0]));
    };
    for (const order of ['ABC', 'ABC', 'ACB', 'CBA', 'BA', 'A', 'AC', 'ABC']) {
      expect(devices(...order), order).toEqual([...order].map((name) => 'ABC'.indexOf(name) + 1));
    }
  });

  it('does not find a dropped child where it followed last time, and finds the device that has the name later', async () => {
    const children = ['A', 'B', 'C'];
    const gateway = await gatewayWith(children);
    const body = '{"A":[{"a":1}],"B":[{"b":2}]}';
    for (let pass = 0; pass < 2; pass += 1) expect(decode(gateway, body).rows[1]).toBe('2 b@now long 2');
    gateway.disconnect('B');
    expect(decode(gateway, body).answer).toContain(unknownChild.message);
    // Another device takes the place of the record, and then a further one the name.
    children.push('D');
    await connect(gateway, ['D']);
    expect(decode(gateway, body).answer).toContain(unknownChild.message);
    expect(decode(gateway, '{"A":[{"a":1}],"D":[{"d":4}]}').rows[1]).toBe('4 d@now long 4');
    children[1] = '';
    children.push('B');
    await connect(gateway, ['B']);
    for (let pass = 0; pass < 2; pass += 1) expect(decode(gateway, body).rows[1]).toBe('5 b@now long 2');
  });

  it('does not find a renamed child where it followed last time', async () => {
    const gateway = await gatewayWith(['A', 'B', 'C']);
    const second = (name: string) => decode(gateway, `{"A":[{"a":1}],"${name}":[{"b":2}]}`).rows[1];
    for (let pass = 0; pass < 2; pass += 1) expect(second('B')).toBe('2 b@now long 2');
    gateway.child('B')!.device.refresh({ ...deviceRow(2, 'Z'), version: 2 });
    expect([second('B'), second('B')]).toEqual([undefined, undefined]);
    expect([second('Z'), second('Z'), second('C')]).toEqual(['2 b@now long 2', '2 b@now long 2', '3 b@now long 2']);
    // The former name may be that of another device by now.
    gateway.child('C')!.device.refresh({ ...deviceRow(3, 'B'), version: 2 });
    expect(gateway.child('C')).toBeUndefined();
    expect([second('B'), second('Z')]).toEqual(['3 b@now long 2', '2 b@now long 2']);
  });

  it('finds children by both spellings while hundreds connect and learn the other one', async () => {
    const names = Array.from({ length: 900 }, (_, n) => `device ${n}`);
    const gateway = await gatewayWith(names);
    const escaped = (name: string) => name.replaceAll(/./g, (c) => `\\u00${c.charCodeAt(0).toString(16)}`);
    for (const [n, name] of names.entries()) {
      const other = n % 2 === 0 ? escaped(name) : escaped(name[0]!) + name.slice(1);
      const { rows } = decode(gateway, `{"${name}":[{"a":1}],"device 899 ":[],"${other}":[{"a":2}]}`);
      expect(rows, 'a name that is not connected').toEqual([]);
      // Both spellings are of one child, of which the last entry counts.
      expect(decode(gateway, `{"${name}":[{"a":1}],"${other}":[{"a":2}]}`).rows).toEqual([`${n + 1} a@now long 2`]);
      for (const spelling of [name, other, other, name]) {
        expect(decode(gateway, `{"${spelling}":[{"a":3}]}`).rows).toEqual([`${n + 1} a@now long 3`]);
      }
    }
  });

  it('does not read the objects of known children, without limits and renames', () => {
    const body = '{"A":[{"a":1}],"B":[{"b":2}]}';
    decode(hub, body);
    const childAt = vi.spyOn(hub.spelled, 'childAt');
    const child = vi.spyOn(hub, 'child');
    expect(decode(hub, body).rows).toHaveLength(2);
    expect([childAt.mock.calls, child.mock.calls]).toEqual([[], []]);
    vi.restoreAllMocks();
  });

  it('mixes both forms, and may name many children', () => {
    both('{"A":[{"ts":1,"values":{"a":1}}],"B":[{"b":2}, {"ts":5,"values":{"b":3}}]}', [
      '1 a@1 long 1',
      '2 b@now long 2',
      '2 b@5 long 3',
    ]);
    both(' { "B" : [ { "ts" : 1 , "values" : { "a" : 1 } } ] , "A" : [ ] } ', ['2 a@1 long 1']);
  });

  it('has the server time where a record has values and no ts', () => {
    both('{"A":[{"values":{"a":1}}]}', ['1 a@now long 1']);
    both('{"A":[{"values":{"a":1},"metadata":{"x":1}}]}', ['1 a@now long 1']);
    both('{"A":[{"values":5}]}', ['1 values@now long 5']);
    both('{"A":[{"ts":5}]}', ['1 ts@now long 5']);
  });

  it('is stripped of metadata, malformed or not', () => {
    both('{"A":[{"ts":1,"values":{"a":1},"metadata":{"connector":"x","receivedTs":1,"publishedTs":2}}]}', [
      '1 a@1 long 1',
    ]);
    both('{"A":[{"metadata":5,"ts":1,"values":{"a":1}}]}', ['1 a@1 long 1']);
    both('{"A":[{"ts":1,"metadata":[1,{"x":null}],"values":{"a":1}}]}', ['1 a@1 long 1']);
    both('{"A":[{"metadata":"m","a":1}]}', ['1 metadata@now string "m"', '1 a@now long 1']);
  });

  it('may hold nothing', () => {
    both('{}', []);
    both('{"A":[]}', []);
    both('{"A":[{}],"B":[{"ts":1,"values":{}}]}', []);
  });

  it('loses only the bad child', () => {
    both('{"A":[5],"B":[{"b":1}]}', ['2 b@now long 1'], '400 "A": Each record must be an object.');
    both('{"A":5,"B":[{"b":1}]}', ['2 b@now long 1'], '400 "A": The value must be an array of records.');
    both('{"B":[{"b":1}],"A":[{"a":1},{"ts":"x","values":{"a":1}}]}', ['2 b@now long 1'], /^400 "A": The member "ts"/);
    both('{"A":[{"":1}],"B":[{"b":1}],"C":[{" ":2}]}', ['2 b@now long 1'], /^400 "A": .* "C": /);
    both('{"A":[{"a":1e999}],"B":[{"b":1}]}', ['2 b@now long 1'], /^400 "A": The number 1e999 is beyond/);
    both('{"A":[{"a":"\\ud800"}],"B":[{"b":1}]}', ['2 b@now long 1'], /^400 "A": .*surrogate/);
    both(`{"A":[{"a":${'['.repeat(70)}${']'.repeat(70)}}],"B":[{"b":1}]}`, ['2 b@now long 1'], /^400 "A": .*deeper/);
    both('{"x":5,"B":[{"b":1}]}', ['2 b@now long 1'], '400 "x": The value must be an array of records.');
  });

  it('is refused as a whole when it is no JSON object', () => {
    both('', [], /^400 whole: .*empty/);
    both('5', [], /^400 whole: .*object/);
    both('[{"A":[]}]', [], /^400 whole: .*object/);
    both('{"A":[{"a":1}],"B":[{"b":1}', [], /^400 whole/);
    both('{"A":[{"a":1}]}}', [], /^400 whole/);
    both('{"A":[{"a":1}],}', [], /^400 whole/);
    both(Buffer.from('{"A":[{"a":"\xff"}]}', 'latin1'), [], /^400 whole: .*UTF-8/);
    both(Buffer.from('{"B":[{"b":1}],"A\xff":[{"a":"x"}]}', 'latin1'), [], /^400 whole: .*UTF-8/);
  });

  it('has the last of what is under one name', () => {
    both('{"A":[{"ts":1,"values":{"a":1}}],"B":[{"b":1}],"A":[{"ts":2,"values":{"a":2}}]}', [
      '1 a@2 long 2',
      '2 b@now long 1',
    ]);
    both('{"A":5,"A":[{"a":2}]}', ['1 a@now long 2']);
    both('{"A":[{"a":1}],"\\u0041":[{"a":2}]}', ['1 a@now long 2']);
    both('{"B":[{"b":1}],"A":[{"a":1}],"B":[{"b":2}]}', ['2 b@now long 2', '1 a@now long 1']);
  });

  it('finds names however they are written', () => {
    both('{"Ger\\u00e4t":[{"a":1}]}', ['4 a@now long 1']);
    both('{"Gerät":[{"a":1}]}', ['4 a@now long 1']);
    both('{"\\u0041":[{"a":1}],"say \\"hi\\"":[{"a":2}],"__proto__":[{"a":3}]}', [
      '1 a@now long 1',
      '5 a@now long 2',
      '6 a@now long 3',
    ]);
    both('{"say "hi"":[{"a":2}]}', [], /^400 whole/);
  });

  it('names a few of many bad children, shortened', async () => {
    const many = Array.from({ length: 50 }, (_, n) => `${'x'.repeat(200)}${n}`);
    const gateway = await gatewayWith(many);
    const { answer } = decode(gateway, JSON.stringify(Object.fromEntries(many.map((name) => [name, [1]]))));
    expect(answer).toContain('And 45 more devices.');
    expect(answer.length).toBeLessThan(1000);
  });

  it('stops at a child that is not connected, and does so again only for those that were not refused', () => {
    const body = '{"A":[{"a":1}],"nobody":[{"b":2}]}';
    expect(decode(hub, body).answer).toContain(unknownChild.message);
    expect(childrenOf(Buffer.from(body)).map(({ name }) => name)).toEqual(['A', 'nobody']);
    expect(childrenOf(Buffer.from('{"A":[],"B":5,"C":{}}')).map(({ name }) => name)).toEqual(['A']);
    const rows = new Rows(1);
    let fault: Fault | undefined;
    const message = new GatewayTelemetry(hub, {
      acknowledge: () => {},
      refuse: (refused) => {
        fault = refused;
      },
    });
    message.refused = new Map([['nobody', new Fault('device_limit', 'No room.')]]);
    expect(decoder.decode(Buffer.from(body), message, now, rows)).toBe(1);
    message.acknowledge();
    expect(fault).toMatchObject({ status: 403, message: '"nobody": No room.' });
  });

  it('is refused by the fault that deserves another try', () => {
    const limited = new GatewayTelemetry(hub, {
      acknowledge: () => {},
      refuse: (fault) => expect(fault.errorCode).toBe(ErrorCode.entitiesLimit),
    });
    limited.refused = new Map([['nobody', new Fault('device_limit', 'No room.')]]);
    decoder.decode(Buffer.from('{"A":5,"nobody":[]}'), limited, now, new Rows(1));
    limited.acknowledge();
    expect.assertions(1);
  });
});

describe('limits of the gateway', () => {
  it('refuse a child over them and keep the rows of the others; a message is counted once', () => {
    let room = 3;
    let counted = 0;
    const admission = {
      isLimiting: true,
      chargeChild: (_gateway: unknown, _child: unknown, rows: Rows, first: number) => {
        const points = rows.count - first;
        counted += 1;
        if (points > room) throw new Fault('rate_limit_gateway', 'Too many.', 1);
        room -= points;
      },
    };
    const active: number[] = [];
    const limited = new GatewayDecoder({ options, touch: ({ number }) => void active.push(number), admission });
    let fault: Fault | undefined;
    const message = new GatewayTelemetry(hub, {
      acknowledge: () => {},
      refuse: (refused) => {
        fault = refused;
      },
    });
    const body = Buffer.from(
      '{"A":[{"ts":1,"values":{"a":1,"b":2}}],"B":[{"ts":1,"values":{"a":1,"b":2}}],"C":[{"c":1}]}',
    );
    for (let pass = 0; pass < 2; pass += 1) {
      const rows = new Rows(1);
      expect(limited.decode(body, message, now, rows)).toBe(3);
      expect(readBlock(Buffer.concat(rows.encode(stamp))).map(({ device }) => device)).toEqual([1, 1, 3]);
    }
    expect(counted).toBe(3);
    expect(active).toEqual([1, 3, 1, 3]);
    message.acknowledge();
    expect(fault).toMatchObject({ status: 429, message: '"B": Too many.' });
  });
});

describe('the activity of children', () => {
  for (const way of ['fast', 'careful'] as const) {
    const activeAfter = (body: string) => {
      const active: number[] = [];
      decode(
        hub,
        body,
        way,
        new GatewayDecoder({ options, touch: ({ number }) => void active.push(number), admission: undefined }),
      );
      return active;
    };

    it(`is noted for each child that is accepted, and for none of a message that is refused, the ${way} way`, () => {
      expect(activeAfter('{"A":[{"a":1}],"C":[{"c":1}],"B":[]}')).toEqual([1, 3, 2]);
      expect(activeAfter('{"A":[{"a":1}]}')).toEqual([1]);
      expect(activeAfter('{}')).toEqual([]);
      expect(activeAfter('{"A":[{"a":1}],"B":[{"b":1}],x}')).toEqual([]);
      expect(activeAfter('{"A":[{"a":1}],"B":5}')).toEqual([1]);
    });
  }
});

describe('the fast way', () => {
  const blank = fc.constantFrom('', '', '', ' ', '\n ');
  const name = fc.constantFrom('"A"', '"B"', '"C"', '"Gerät"', '"Ger\\u00e4t"', '"\\u0042"', '"say \\"hi\\""');
  const key = fc.constantFrom('"k"', '"ts"', '"values"', '"metadata"', '"key two"', '""', '"\\u006b"', '"ä"');
  const value = fc.constantFrom(
    '1',
    '-2.5',
    'true',
    'null',
    '"t"',
    '"007"',
    '"\\n"',
    '{"n":[1,2]}',
    '[]',
    '1e400',
    '1e2',
    'x',
  );
  const members = fc
    .array(fc.tuple(key, blank, value), { maxLength: 4 })
    .map((pairs) => `{${pairs.map(([k, b, v]) => `${k}${b}:${b}${v}`).join(',')}}`);
  const ts = fc.constantFrom('1', '1700000000000', '"5"', '1.5', 'null', '99999999999999999999');
  const record = fc.oneof(
    members,
    fc.tuple(ts, members, blank).map(([t, m, b]) => `{${b}"ts":${t},${b}"values":${m}${b}}`),
    fc.tuple(ts, members, value).map(([t, m, v]) => `{"ts":${t},"values":${m},"metadata":${v}}`),
    members.map((m) => `{"values":${m}}`),
    fc.constantFrom('5', '[]', 'null'),
  );
  const child = fc.oneof(
    { weight: 9, arbitrary: fc.array(record, { maxLength: 3 }).map((list) => `[${list.join(',')}]`) },
    { weight: 1, arbitrary: value },
  );
  const document = fc
    .tuple(fc.array(fc.tuple(name, blank, child), { maxLength: 5 }), blank)
    .map(([list, b]) => `${b}{${list.map(([n, c, v]) => `${b}${n}${c}:${v}${c}`).join(',')}}${b}`);

  const check = (body: string): void => {
    const careful = decode(hub, body, 'careful');
    const fast = decode(hub, body, 'fast');
    expect(fast, body).toEqual(careful);
  };

  it('gives the same rows and the same answer as the careful way', () => {
    fc.assert(fc.property(document, check), { numRuns: 3000 });
  });

  it('does so for messages with one byte changed, cut or doubled', () => {
    const byte = fc.constantFrom('', '"', '{', '}', '[', ']', ',', ':', '\\', '1', '.', 'e', ' ');
    fc.assert(
      fc.property(document, fc.nat(), byte, (body, place, inserted) => {
        const at = place % (body.length + 1);
        check(body.slice(0, at) + inserted + body.slice(at + 1));
      }),
      { numRuns: 3000 },
    );
  });
});
