import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { anyTime as options } from '../../test/harness/decode-options.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Kind } from '../value/typed.ts';
import { tsDistanceMsMax } from './block.ts';
import { decodeTelemetry, decodeTelemetryExactly } from './decode.ts';
import { readBlock } from './read-block.ts';
import { Rows } from './rows.ts';

const now = 1_700_000_000_000;
const order = BigInt(now) << 20n;
const stamp = { order, micros: now * 1000, firstPlace: 0 };

type Decode = typeof decodeTelemetry;

/**
 * Rows as short strings, one each: `key@ts kind value`, where the place is added to a server time; or the fault as
 * `status reason`.
 */
function decode(body: string | Uint8Array, by: Decode = decodeTelemetry, wanted = options): string[] | string {
  const device = { number: 7 };
  const rows = new Rows(1);
  try {
    const count = by(typeof body === 'string' ? Buffer.from(body) : body, device, now, rows, wanted);
    const read = readBlock(Buffer.concat(rows.encode(stamp)));
    expect(read.length).toBe(count);
    return read.map(({ key, ts, seq, kind, num, int, text }) => {
      const value = kind === Kind.double ? num : kind <= Kind.long ? int : JSON.stringify(text);
      return `${key}@${ts + (seq % 2 ** 24)} ${names[kind]} ${Object.is(value, -0) ? '-0' : value}`;
    });
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    expect(rows.count).toBe(0);
    expect(rows.encode(stamp)).toEqual([]);
    return `${error.status} ${error.reason}`;
  }
}

const names = ['', 'boolean', 'long', 'double', 'string', 'json'];

/** Both readers must agree; the first result is the expected one. */
function both(body: string | Uint8Array, expected: string[] | string, wanted = options): void {
  const shown = typeof body === 'string' ? body.slice(0, 100) : Buffer.from(body).toString('latin1').slice(0, 100);
  expect(decode(body, decodeTelemetry, wanted), shown).toEqual(expected);
  expect(decode(body, decodeTelemetryExactly, wanted), `exactly: ${shown}`).toEqual(expected);
}

const value = (literal: string, expected: string): void => both(`{"k":${literal}}`, [`k@${now} ${expected}`]);
const refused = (body: string | Uint8Array, reason: string, status = 400): void => both(body, `${status} ${reason}`);

describe('types', () => {
  it('gives numbers their kind', () => {
    value('42', 'long 42');
    value('-42', 'long -42');
    value('0', 'long 0');
    value('-0', 'long 0');
    value('42.0', 'double 42');
    value('-0.0', 'double 0');
    value('-0e5', 'long 0');
    value('0e999999999', 'long 0');
    value('-1e-400', 'double 0');
    value('1e2', 'long 100');
    value('1.5e3', 'long 1500');
    value('1.0E2', 'long 100');
    value('-12.50e1', 'long -125');
    value('1200e-2', 'long 12');
    value('1e-2', 'double 0.01');
    value('1.5e0', 'double 1.5');
    value('9007199254740991', 'long 9007199254740991');
    value('9007199254740993', 'long 9007199254740993');
    value('-9007199254740993', 'long -9007199254740993');
    value('9223372036854775807', 'long 9223372036854775807');
    value('-9223372036854775808', 'long -9223372036854775808');
    value('9223372036854775807e0', 'long 9223372036854775807');
    value('9223372036854775808', 'string "9223372036854775808"');
    value('-9223372036854775809', 'string "-9223372036854775809"');
    value('99999999999999999999', 'string "99999999999999999999"');
    value('1e18', 'long 1000000000000000000');
    value('1e19', 'double 10000000000000000000');
    value('1e308', 'double 1e+308');
    value('0.30000000000000004', 'double 0.30000000000000004');
    value('1e-17', 'double 1e-17');
    value('0.1234567890123456', 'double 0.1234567890123456');
    value('12345678.0', 'double 12345678');
    value('9007199254740993.0', 'double 9007199254740992');
    value('4294967296', 'long 4294967296');
    value('-4294967297', 'long -4294967297');
    value('-1', 'long -1');
    value('21.499999999999996', 'double 21.499999999999996');
  });

  it('refuses numbers that are none', () => {
    for (const literal of [
      '01',
      '-',
      '1.',
      '.5',
      '+1',
      '1e',
      '1e+',
      '0x1',
      'NaN',
      'Infinity',
      '-01',
      '00',
      '1.e2',
      '--1',
    ]) {
      refused(`{"k":${literal}}`, 'malformed_json');
    }
    for (const literal of ['1e309', '-1e309', '1e999999999', '1e1000000000', `${'9'.repeat(400)}.5`]) {
      refused(`{"k":${literal}}`, 'number_not_finite');
      refused(`{"k":[${literal}]}`, 'number_not_finite');
    }
    refused(`{"k":${'9'.repeat(1025)}}`, 'number_too_long');
    refused(`{"k":0.${'9'.repeat(1025)}}`, 'number_too_long');
    value('9'.repeat(1024), `string "${'9'.repeat(1024)}"`);
  });

  it('casts numeric strings', () => {
    value('"5"', 'long 5');
    value('"-5"', 'long -5');
    value('"007"', 'long 7');
    value('"-007"', 'long -7');
    value('"0"', 'long 0');
    value('"-0"', 'long 0');
    value('"1.0"', 'double 1');
    value('".5"', 'double 0.5');
    value('"-.5"', 'double -0.5');
    value('"9223372036854775807"', 'long 9223372036854775807');
    value('"\\u0035"', 'long 5');
    const stay = [
      '',
      '-',
      '.',
      '5.',
      '+5',
      '1e3',
      ' 5',
      '5 ',
      'true',
      'NaN',
      '0x1F',
      '1_000',
      '1.2.3',
      '1,5',
      '-.',
      '1-',
      '٥',
    ];
    stay.push('12345678901234567890', '0012345678901234567890', '2026-07-01', '1.2.3.4');
    stay.push(`${'9'.repeat(400)}.5`, '1'.repeat(2000));
    for (const text of stay) value(JSON.stringify(text), `string ${JSON.stringify(text)}`);
    const off = { ...options, castNumericStrings: false };
    both('{"k":"007","l":"1.5"}', [`k@${now} string "007"`, `l@${now} string "1.5"`], off);
  });

  it('keeps booleans, strings and JSON', () => {
    value('true', 'boolean 1');
    value('false', 'boolean 0');
    value('"x"', 'string "x"');
    value('"Grüße 🌡 \\" \\\\ \\/ \\n \\u00e9 \\ud83c\\udf21"', `string ${JSON.stringify('Grüße 🌡 " \\ / \n é 🌡')}`);
    value(`"${'long '.repeat(100)}"`, `string ${JSON.stringify('long '.repeat(100))}`);
    value(
      '{ "e" : [ 1 , 2.0, 1e2, 12345678901234567890 ] , "" : null }',
      `json ${JSON.stringify('{"e":[1,2.0,1e2,12345678901234567890],"":null}')}`,
    );
    value('{"b":1,"a":2,"b":3,"__proto__":{}}', `json ${JSON.stringify('{"b":3,"a":2,"__proto__":{}}')}`);
    value('[]', 'json "[]"');
    value('{}', 'json "{}"');
    both('{"a":null}', []);
    both('{"a":null,"b":1}', [`b@${now} long 1`]);
  });

  it('refuses text that cannot be stored', () => {
    for (const text of ['\\u0000', 'x\\u0000y']) {
      refused(`{"k":"${text}"}`, 'nul_character');
      refused(`{"${text}":1}`, 'nul_character');
      refused(`{"k":[{"${text}":1}]}`, 'nul_character');
    }
    for (const text of ['\\ud800', '\\udc00', '\\ud800x', '\\udc00\\ud800', '\\ud800\\ud800']) {
      refused(`{"k":"${text}"}`, 'lone_surrogate');
      refused(`{"${text}":1}`, 'lone_surrogate');
    }
    for (const text of ['\x00', '\x01', '\n', '\t', '\x1f']) {
      refused(`{"k":"a${text}"}`, 'malformed_json');
      refused(`{"k${text}":1}`, 'malformed_json');
    }
    for (const text of ['\\x', '\\u12', '\\u12g4', '\\', '\\U0041']) refused(`{"k":"${text}"}`, 'malformed_json');
    for (const bytes of ['\xff', '\xc0\x80', '\xed\xa0\x80', '\xe2\x82', '\xf5\x80\x80\x80']) {
      refused(Buffer.from(`{"k":"${bytes}"}`, 'latin1'), 'invalid_utf8');
      expect(decode(Buffer.from(`{"${bytes}":1}`, 'latin1'))).toMatch(/^400 /);
      refused(Buffer.from(`{"k":["${bytes}"]}`, 'latin1'), 'invalid_utf8');
    }
  });
});

describe('keys', () => {
  it('takes any name but blank and over-long ones', () => {
    for (const key of [
      '__proto__',
      'constructor',
      'a b',
      'ключ',
      '🌡',
      'x'.repeat(255),
      '🌡'.repeat(127),
      '<b>',
      '.',
      'a\\"b',
    ]) {
      both(`{"${key}":1}`, [`${JSON.parse(`"${key}"`)}@${now} long 1`]);
    }
    for (const key of ['', ' ', '\\t', '\u00a0\u2003']) refused(`{"${key}":1}`, 'blank_key');
    for (const key of ['x'.repeat(256), '🌡'.repeat(128), 'x'.repeat(5000)]) refused(`{"${key}":1}`, 'bad_key');
    refused('{"":null}', 'blank_key');
  });

  it('names the key it refuses', () => {
    const rows = new Rows();
    const long = () => decodeTelemetry(Buffer.from(`{"${'k'.repeat(300)}":1}`), { number: 1 }, now, rows, options);
    expect(long).toThrow(/"kkkkkkkk.*255/);
  });

  it('lets the last of equal names win', () => {
    both('{"a":1,"b":3,"a":2}', [`a@${now} long 2`, `b@${now} long 3`]);
    const long = 'long '.repeat(40);
    both(`{"${long}":1,"b":2,"${long}":null}`, [`b@${now} long 2`]);
    both('{"a":1,"\\u0061":2}', [`a@${now} long 2`]);
    both('{"a":1,"a":null}', []);
    both('{"a":null,"a":1}', [`a@${now} long 1`]);
    both('{"ts":1,"values":{"a":1},"ts":2}', ['a@2 long 1']);
    both('{"ts":1,"values":{"a":1},"values":{"b":1}}', ['b@1 long 1']);
  });
});

describe('shapes', () => {
  it('stores bare members, timed values and arrays of both', () => {
    both('{"temp":21.5}', [`temp@${now} double 21.5`]);
    both('{"ts":1700000000000,"values":{"a":1,"b":true,"c":"x","d":{"e":[1]}}}', [
      'a@1700000000000 long 1',
      'b@1700000000000 boolean 1',
      'c@1700000000000 string "x"',
      'd@1700000000000 json "{\\"e\\":[1]}"',
    ]);
    both('[{"ts":1,"values":{"a":1}},{"a":2}]', ['a@1 long 1', `a@${now} long 2`]);
    both('[{"a":1},{"a":2}]', [`a@${now} long 1`, `a@${now + 1} long 2`]);
    both('\ufeff \t\r\n{ "ts" : 1 , "values" : { "a" : 1 , "b" : 2 } } \n', ['a@1 long 1', 'b@1 long 2']);
    both(' [ { "a" : 1 } , { "b" : "x" } ] ', [`a@${now} long 1`, `b@${now + 1} string "x"`]);
    both('{"values":{"a":1},"ts":5}', ['a@5 long 1']);
  });

  it('takes what holds no point', () => {
    for (const body of ['{}', '[]', '[{}]', '{"ts":1,"values":{}}', '{"a":null}', ' { } ', '[ ]', '[{},{}]'])
      both(body, []);
  });

  it('recognises the timed form only by both members', () => {
    both('{"ts":5}', [`ts@${now} long 5`]);
    both('{"ts":"x"}', [`ts@${now} string "x"`]);
    both('{"values":{"a":1}}', [`values@${now} json "{\\"a\\":1}"`]);
    both('{"ts":5,"a":1}', [`ts@${now} long 5`, `a@${now} long 1`]);
    both('{"ts":1,"values":{"a":1},"x":9}', ['a@1 long 1']);
    both('{"x":9,"ts":1,"values":{"a":1},"metadata":{"":1}}', ['a@1 long 1']);
    both('{"ts":1,"values":{"ts":2,"values":3}}', ['ts@1 long 2', 'values@1 long 3']);
    both('[{"ts":1,"values":{"ts":2,"values":3}}]', ['ts@1 long 2', 'values@1 long 3']);
  });

  it('refuses every other shape, and all of the message', () => {
    for (const body of ['5', '"x"', 'null', 'true', '[5]', '[[]]', '[{"a":1},5]', '[{"a":1},null]', '[{"a":1},[]]'])
      refused(body, 'wrong_shape');
    for (const body of ['{"ts":1,"values":7}', '{"ts":1,"values":null}', '{"ts":1,"values":[]}'])
      refused(body, 'wrong_shape');
    refused('', 'empty_body');
  });

  it('refuses what is not JSON', () => {
    const bodies = [
      '{"a":',
      "{'a':1}",
      '{a:1}',
      '{"a":1,}',
      '{"a":1}}',
      '{"a":1} x',
      '[{"a":1},]',
      '[,]',
      '[{"a":1}',
      '{"a" 1}',
      '{"a":}',
    ];
    bodies.push(
      '{"a":tru}',
      '{"a":nul}',
      '{"a":fals',
      '{"a":TRUE}',
      '{"a":1 "b":2}',
      '{"a":"x}',
      '{',
      '[',
      ']',
      '}',
      ' ',
      '\ufeff',
      '{"a',
    );
    bodies.push(
      '{"a":1}{"b":2}',
      '[{"a":1} {"b":2}]',
      '/**/{}',
      '{"a":1}//',
      '{"ts":1,"values":{"a":1}',
      '{"ts":1,"values":{"a":1}}}',
    );
    bodies.push(
      '{"ts":01,"values":{"a":1}}',
      '{"a":{]}',
      '{"a":[1,]}',
      '{"a":[1 2]}',
      '{"a":{"b":1,}}',
      '[}',
      '{]',
      '{"a":truex}',
    );
    for (const body of bodies) refused(body, 'malformed_json');
  });

  it('refuses JSON that is nested too deep', () => {
    const deep = (levels: number) => `{"k":${'['.repeat(levels)}${']'.repeat(levels)}}`;
    const kept = '['.repeat(limits.jsonDepthMax - 1) + ']'.repeat(limits.jsonDepthMax - 1);
    both(deep(limits.jsonDepthMax - 1), [`k@${now} json "${kept}"`]);
    refused(deep(limits.jsonDepthMax), 'json_too_deep');
    refused(`[${deep(limits.jsonDepthMax - 1)}]`, 'json_too_deep');
    refused(`{"ts":1,"values":${deep(limits.jsonDepthMax - 1)}}`, 'json_too_deep');
    refused('['.repeat(20_000) + ']'.repeat(20_000), 'json_too_deep');
    refused(deep(100_000), 'json_too_deep');
  });

  it('limits the points of a message', () => {
    const members = (n: number) => `{${Array.from({ length: n }, (_, i) => `"k${i}":1`).join()}}`;
    expect(decode(members(1000))).toHaveLength(1000);
    refused(members(1001), 'too_many_points', 413);
    refused(`[${members(600)},${members(600)}]`, 'too_many_points', 413);
  });
});

describe('ts', () => {
  const at = (ts: string, expected: number): void => both(`{"ts":${ts},"values":{"a":1}}`, [`a@${expected} long 1`]);
  const bad = (ts: string, reason: string): void => refused(`{"ts":${ts},"values":{"a":1}}`, reason);

  it('reads whole milliseconds', () => {
    at('1.9', 1);
    at('-1.9', -1);
    at('1e12', 1e12);
    at('"1700000000000"', now);
    at('0', 0);
    at('-0', 0);
    at('-0.5', 0);
    at('-5', -5);
    at('7258118400000', 7_258_118_400_000);
    at(String(now - tsDistanceMsMax), now - tsDistanceMsMax);
    at(String(now + tsDistanceMsMax), now + tsDistanceMsMax);
  });

  it('refuses the rest, naming ts', () => {
    for (const ts of ['"1.9"', '"1e12"', '"abc"', '""', '" 1 "', '"٥"', 'true', 'null', '{}', '[1]']) bad(ts, 'bad_ts');
    for (const ts of [
      '99999999999999999999',
      '"99999999999999999999"',
      '1e300',
      String(now - tsDistanceMsMax - 1),
      String(now + tsDistanceMsMax + 1),
    ]) {
      bad(ts, 'ts_out_of_range');
    }
    bad('1e999', 'number_not_finite');
    const read = () =>
      decodeTelemetry(Buffer.from('{"ts":null,"values":{"a":1}}'), { number: 1 }, now, new Rows(), options);
    expect(read).toThrow(/"ts"/);
  });

  it('converts seconds, microseconds and nanoseconds if asked to, and leaves milliseconds alone', () => {
    const auto = { ...options, convertsUnits: true, fastPastMsMax: 20 * 365 * 86_400_000 };
    const timed = (ts: string) => `{"ts":${ts},"values":{"a":1}}`;
    const stored = [`a@${now - 1000} long 1`];
    for (const ts of ['1699999999', '1699999999000000', '1699999999000000000', '"1699999999"', '1699999999.5']) {
      both(timed(ts), stored, auto);
    }
    for (const ts of [0, -5, 1, 946_684_799, now - 30 * 365 * 86_400_000, now + 1000]) {
      both(timed(String(ts)), [`a@${ts} long 1`], auto);
      both(timed(String(ts)), [`a@${ts} long 1`]);
    }
    both(timed('1699999999'), ['a@1699999999 long 1']);
    both(timed('1699999999000000'), '400 ts_out_of_range');
    both(timed('1699999999'), '400 ts_out_of_range', { ...auto, pastMsMax: 10, fastPastMsMax: 10 });
  });

  it('names the unit of a refused time, and notes what was converted until the message is refused', () => {
    const auto = { ...options, convertsUnits: true, fastPastMsMax: 20 * 365 * 86_400_000 };
    const rows = new Rows();
    const read = (body: string, by = auto) => decodeTelemetry(Buffer.from(body), { number: 1 }, now, rows, by);
    expect(() => read('{"ts":1699999999000000,"values":{"a":1}}', options)).toThrow(
      /1699999999000000: .* It looks like microseconds: send milliseconds\.$/,
    );
    read('[{"a":1},{"ts":1699999999,"values":{"a":1}}]');
    expect(rows.converted).toEqual([{ span: 1, ts: 1_699_999_999, unit: 'seconds' }]);
    expect(() => read('[{"ts":1699999998,"values":{"a":1}},7]')).toThrow();
    expect(rows.converted).toHaveLength(1);
    rows.reset();
    expect(rows.converted).toEqual([]);
  });

  it('keeps a narrower window', () => {
    const narrow = { ...options, pastMsMax: 1000, fastPastMsMax: 1000, futureMsMax: 10 };
    both(`{"ts":${now - 1000},"values":{"a":1}}`, [`a@${now - 1000} long 1`], narrow);
    both(`{"ts":${now + 10},"values":{"a":1}}`, [`a@${now + 10} long 1`], narrow);
    both(`{"ts":${now - 1001},"values":{"a":1}}`, '400 ts_out_of_range', narrow);
    both(`{"ts":${now + 11},"values":{"a":1}}`, '400 ts_out_of_range', narrow);
    both('{"a":1}', [`a@${now} long 1`], narrow);
  });
});

describe('lenient JSON', () => {
  const lenient = { ...options, lenientJson: true };
  const f = (body: string, expected: string[] | string) =>
    expect(decode(body, decodeTelemetry, lenient), body).toEqual(expected);

  it('is read where the strict reader finds the body malformed', () => {
    f('{temperature:25}', [`temperature@${now} long 25`]);
    f("[{ts: 1, values: {'a': 1.0, // one\n b: 'x',},}, {c: True}]", [
      'a@1 double 1',
      'b@1 string "x"',
      `c@${now} boolean 1`,
    ]);
    f("{'s': '007', j: {k: [1.10, 'é',]}}", [`s@${now} long 7`, `j@${now} json "{\\"k\\":[1.10,\\"é\\"]}"`]);
    f('{i: 9007199254740993}', [`i@${now} long 9007199254740993`]);
  });

  it('leaves no row when it is refused, and the reason is that of the lenient reader', () => {
    f('[{"a":1},{b:hot}]', '400 malformed_json');
    f('{"a":1,b:1e400}', '400 number_not_finite');
    f("{ts:'x',values:{a:1}}", '400 bad_ts');
    f("{'':1}", '400 blank_key');
    f(`[${'{a:1},'.repeat(1001)}]`, '413 too_many_points');
    expect(decode('{a:1}')).toBe('400 malformed_json');
  });
});

describe('properties', () => {
  const blank = fc.constantFrom('', '', '', ' ', '\n\t');
  const name = fc.oneof(
    fc.constantFrom('ts', 'values', 'a', 'b', 'temperature', '', '\\u0061', 'é'),
    fc.string().map((text) => JSON.stringify(text).slice(1, -1)),
  );
  const number = fc.oneof(
    fc.integer().map(String),
    fc.double().map((num) => String(num)),
    fc.bigInt({ min: -(2n ** 65n), max: 2n ** 65n }).map(String),
    fc
      .tuple(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.integer({ min: 0, max: 20 }))
      .map(([n, digits]) => n.toExponential(digits)),
    fc.tuple(fc.integer(), fc.nat(999_999)).map(([whole, fraction]) => `${whole}.${fraction}`),
    fc.constantFrom('-0', '0', '00', '1.', '1e5', '1E-3', '1700000000000'),
  );
  const scalar = fc.oneof(
    number,
    fc.constantFrom('true', 'false', 'null', 'x', ''),
    fc.string().map((text) => JSON.stringify(text)),
    fc.string({ unit: 'binary' }).map((text) => JSON.stringify(text)),
    number.map((text) => `"${text}"`),
  );
  const { element } = fc.letrec<{ element: string; json: string; members: string }>((tie) => ({
    json: fc.oneof(
      { depthSize: 'small' },
      scalar,
      tie('element'),
      fc.array(tie('json'), { maxLength: 3 }).map((items) => `[${items}]`),
    ),
    members: fc
      .array(fc.tuple(blank, name, blank, tie('json'), blank), { maxLength: 4 })
      .map((list) => `{${list.map(([b, n, c, v, d]) => `${b}"${n}"${c}:${d}${v}`)}}`),
    element: fc.oneof(
      tie('members'),
      fc.tuple(number, tie('members'), blank).map(([ts, members, b]) => `{"ts":${ts},${b}"values":${members}}`),
    ),
  }));
  const document = fc.oneof(
    element,
    fc.array(element, { maxLength: 3 }).map((list) => `[${list}]`),
  );

  it('the fast way and the careful way agree', () => {
    const check = (body: string): void => {
      const fast = decode(body);
      const exact = decode(body, decodeTelemetryExactly);
      if (typeof exact === 'string') expect(typeof fast, body).toBe('string');
      else expect(fast, body).toEqual(exact);
    };
    fc.assert(fc.property(document, check), { numRuns: 2000 });
    // The same with one byte changed, cut or doubled.
    fc.assert(
      fc.property(
        document,
        fc.nat(),
        fc.constantFrom('', '"', '{', '}', ',', ':', '\\', '1', '.', 'e', ' '),
        (body, place, byte) => {
          const at = place % (body.length + 1);
          check(body.slice(0, at) + byte + body.slice(at + 1));
        },
      ),
      { numRuns: 2000 },
    );
  });

  it('accepts as JSON what JSON.parse accepts', () => {
    fc.assert(
      fc.property(document, (body) => {
        if (decode(body) !== '400 malformed_json') return;
        expect(() => JSON.parse(body), body).toThrow();
      }),
      { numRuns: 500 },
    );
  });

  it('random bytes are refused by a Fault or taken', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => void decode(bytes)),
      { numRuns: 500 },
    );
    const pieces = fc.array(
      fc.constantFrom(
        '{',
        '}',
        '[',
        ']',
        '"',
        ':',
        ',',
        '1',
        '-',
        '.',
        'e',
        'a',
        '\\',
        'u',
        ' ',
        'true',
        'null',
        '\xff',
      ),
      { maxLength: 30 },
    );
    fc.assert(
      fc.property(pieces, (list) => {
        const bytes = Buffer.from(list.join(''), 'latin1');
        expect(typeof decode(bytes)).toBe(typeof decode(bytes, decodeTelemetryExactly));
      }),
      { numRuns: 3000 },
    );
  });
});

it('one message is decoded at a time: a second one inside it is a bug', () => {
  const rows = new Rows(1);
  const device = { number: 7 };
  const inside = {
    get number() {
      decodeTelemetry(Buffer.from('{"b":2}'), device, now, rows, options);
      return 7;
    },
  };
  const again = () => decodeTelemetry(Buffer.from('{"a":1}'), inside, now, new Rows(1), options);
  expect(again).toThrow('BUG: a message is read to its end before the next one');
  expect(decode('{"a":1}')).toHaveLength(1);
  expect(decode("{'a':1}", decodeTelemetry, { ...options, lenientJson: true })).toHaveLength(1);
});
