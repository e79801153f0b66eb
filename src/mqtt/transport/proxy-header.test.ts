import { describe, expect, test } from 'vitest';
import { proxyV2 } from '../../../test/harness/proxy-header.ts';
import { readProxyHeader } from './proxy-header.ts';

const text = (line: string) => Buffer.from(line, 'latin1');

describe('version 1', () => {
  test.each([
    ['PROXY TCP4 192.0.2.1 10.0.0.1 50000 1883\r\n', '192.0.2.1'],
    ['PROXY TCP6 2001:db8::1 fd00::1 50000 1883\r\n', '2001:db8::1'],
    ['PROXY UNKNOWN\r\n', undefined],
    ['PROXY UNKNOWN ffff:f…ff 1 2 3\r\n', undefined],
  ])('%j', (line, address) => {
    const bytes = Buffer.concat([text(line), Buffer.from([0x10, 0])]);
    expect(readProxyHeader(bytes)).toEqual({ bytes: line.length, address });
    for (let length = 1; length < line.length; length += 1) {
      expect(readProxyHeader(bytes.subarray(0, length)), `${length} bytes`).toBe('incomplete');
    }
  });

  test.each([
    'PROXY TCP4 192.0.2.1 10.0.0.1 50000\r\n',
    'PROXY TCP4 192.0.2.1 10.0.0.1 50000 1883 1\r\n',
    'PROXY TCP4 192.0.2.1 10.0.0.1 50000 65536\r\n',
    'PROXY TCP4 2001:db8::1 fd00::1 50000 1883\r\n',
    'PROXY TCP6 192.0.2.1 10.0.0.1 50000 1883\r\n',
    'PROXY UDP4 192.0.2.1 10.0.0.1 50000 1883\r\n',
    'PROXY  TCP4 192.0.2.1 10.0.0.1 50000 1883\r\n',
    `PROXY UNKNOWN ${'x'.repeat(100)}\r\n`,
    'proxy TCP4 192.0.2.1 10.0.0.1 50000 1883\r\n',
    'GET / HTTP/1.1\r\n\r\n',
  ])('%j is invalid', (line) => {
    expect(readProxyHeader(text(line))).toBe('invalid');
  });
});

describe('version 2', () => {
  const tlvs = Buffer.from([0xea, 0, 3, 1, 2, 3]);
  test.each([
    ['IPv4', proxyV2({ source: '192.0.2.1' }), '192.0.2.1'],
    ['IPv6', proxyV2({ source: '2001:db8::1' }), '2001:db8:0:0:0:0:0:1'],
    ['additional fields', proxyV2({ source: '192.0.2.1', tlvs }), '192.0.2.1'],
    ['LOCAL with addresses', proxyV2({ source: '192.0.2.1', command: 0 }), undefined],
    ['LOCAL without addresses', proxyV2({ command: 0 }), undefined],
    ['an unknown address', proxyV2({}), undefined],
    ['a Unix socket', proxyV2({ family: 0x31, tlvs: Buffer.alloc(216) }), undefined],
  ])('%s', (_name, header, address) => {
    expect(readProxyHeader(Buffer.concat([header, Buffer.from([0x10, 0])]))).toEqual({ bytes: header.length, address });
    for (let length = 1; length < header.length; length += 1) {
      expect(readProxyHeader(header.subarray(0, length)), `${length} bytes`).toBe('incomplete');
    }
  });

  test.each([
    ['version 3', proxyV2({ source: '192.0.2.1', version: 3 })],
    ['an unknown command', proxyV2({ source: '192.0.2.1', command: 2 })],
    ['datagrams', proxyV2({ source: '192.0.2.1', family: 0x12 })],
    ['addresses cut short', proxyV2({ family: 0x11, tlvs: Buffer.alloc(11) })],
    ['too many bytes', proxyV2({ source: '192.0.2.1', tlvs: Buffer.alloc(4_096) })],
    ['another signature', Buffer.from('\r\n\r\n\0\r\nQUIX\n', 'latin1')],
  ])('%s is invalid', (_name, header) => {
    expect(readProxyHeader(header)).toBe('invalid');
  });
});
