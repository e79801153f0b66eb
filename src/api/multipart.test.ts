import { describe, expect, test } from 'vitest';
import { readMultipart } from './multipart.ts';

const type = 'multipart/form-data; boundary=XX';

function parts(body: string, contentType = type) {
  return readMultipart(Buffer.from(body, 'latin1'), contentType).map(({ bytes, ...rest }) => ({
    ...rest,
    text: bytes.toString('latin1'),
  }));
}

function file(content: string, disposition = 'form-data; name="file"; filename="a.bin"'): string {
  return `--XX\r\nContent-Disposition: ${disposition}\r\nContent-Type: text/plain\r\n\r\n${content}\r\n--XX--\r\n`;
}

describe('a multipart body', () => {
  test('of one file gives its name, type and content', () => {
    expect(parts(file('abc'))).toEqual([{ name: 'file', fileName: 'a.bin', contentType: 'text/plain', text: 'abc' }]);
  });

  test('is read as a client writes it', async () => {
    const form = new FormData();
    form.set('note', 'über');
    form.set('file', new Blob([Buffer.from([0, 13, 10, 45, 45, 255])], { type: 'a/b' }), 'pü "m" p.bin');
    const request = new Request('http://x', { method: 'POST', body: form });
    const read = readMultipart(Buffer.from(await request.arrayBuffer()), request.headers.get('content-type')!);
    expect(read.map(({ name, fileName }) => [name, fileName])).toEqual([
      ['note', ''],
      ['file', 'pü "m" p.bin'],
    ]);
    expect(read[0]!.bytes.toString()).toBe('über');
    expect([...read[1]!.bytes]).toEqual([0, 13, 10, 45, 45, 255]);
  });

  test('keeps bytes that resemble a boundary', () => {
    expect(parts(file('a\r\n--X\r\n--xx\r\n-- XX b'))[0]!.text).toBe('a\r\n--X\r\n--xx\r\n-- XX b');
  });

  test('may have an empty part, a preamble, an epilogue, and blanks after the boundary', () => {
    expect(parts(file(''))[0]!.text).toBe('');
    expect(parts(`before\r\n${file('x')}after`)).toHaveLength(1);
    expect(parts(file('x').replace('--XX\r\n', '--XX \t\r\n'))).toHaveLength(1);
    expect(parts('--XX--\r\n')).toEqual([]);
  });

  test('may have names in every notation', () => {
    const nameOf = (disposition: string) => parts(file('x', disposition))[0]!.fileName;
    expect(nameOf('form-data; name=file; filename=a.bin')).toBe('a.bin');
    expect(nameOf('form-data; name="file"; filename="a \\"b\\".bin"')).toBe('a "b".bin');
    expect(nameOf(`form-data; name="file"; filename="a"; filename*=UTF-8''p%C3%BC.bin`)).toBe('pü.bin');
    expect(nameOf(`form-data; name="file"; filename="a"; filename*=UTF-8''%FF`)).toBe('a');
    expect(nameOf('form-data; name="file"; filename="C:\\fw\\a.bin"')).toBe('C:\\fw\\a.bin');
  });

  test('may have a quoted boundary', () => {
    expect(parts(file('x'), 'multipart/form-data; charset=utf-8; boundary="XX"')).toHaveLength(1);
  });
});

describe('a multipart body is refused', () => {
  const refusal = (body: string, contentType = type) => {
    try {
      parts(body, contentType);
    } catch (error) {
      return `${(error as { status: number }).status} ${(error as Error).message}`;
    }
    return 'accepted';
  };

  test.each([
    ['another media type', file('x'), 'application/json', /^415/],
    ['no boundary', file('x'), 'multipart/form-data', /^400 .*no boundary/],
    ['a boundary that is too long', file('x'), `multipart/form-data; boundary=${'b'.repeat(71)}`, /^400/],
    ['an empty body', '', type, /^400 .*no end/],
    ['no end', file('x').replace('--XX--', ''), type, /^400 .*no end/],
    ['no name', file('x', 'form-data'), type, /^400 .*no name/],
    ['no disposition', '--XX\r\n\r\nx\r\n--XX--', type, /^400 .*no name/],
    ['a head without end', '--XX\r\nContent-Disposition: form-data', type, /^400 .*head/],
    ['a long head', `--XX\r\nA: ${'x'.repeat(9000)}\r\n\r\n\r\n--XX--`, type, /^400 .*too long/],
    ['many parts', file('x').replace('--XX--\r\n', '').repeat(17), type, /^400 .*16 parts/],
    ['text behind a boundary', '--XXyy\r\n\r\n--XX--', type, /^400 .*line/],
  ])('%s', (_what, body, contentType, expected) => {
    expect(refusal(body, contentType)).toMatch(expected);
  });

  test('any part of a valid body is refused or read, and never throws anything but a fault', () => {
    const whole = `${file('x').replace('--XX--\r\n', '')}${file('y')}`;
    for (let end = 0; end < whole.length - 4; end += 1) expect(refusal(whole.slice(0, end))).toMatch(/^400 /);
  });
});
