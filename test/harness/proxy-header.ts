/** Headers of the PROXY protocol: valid ones, and invalid ones as a test needs them. */

interface ProxyV2 {
  /** The client's address; without it the family is "unspecified". */
  source?: string;
  version?: number;
  /** 0 = LOCAL, 1 = PROXY. */
  command?: number;
  family?: number;
  /** Bytes after the addresses. */
  tlvs?: Buffer;
}

export function proxyV1(source: string): string {
  const [family, target] = source.includes(':') ? ['TCP6', 'fd00::1'] : ['TCP4', '10.0.0.1'];
  return `PROXY ${family} ${source} ${target} 50000 1883\r\n`;
}

export function proxyV2({ source, version = 2, command = 1, family, tlvs = Buffer.alloc(0) }: ProxyV2): Buffer {
  const addresses = source === undefined ? Buffer.alloc(0) : addressesFrom(source);
  const head = Buffer.from('\r\n\r\n\0\r\nQUIT\n    ', 'latin1');
  head[12] = (version << 4) | command;
  head[13] = family ?? (source === undefined ? 0 : source.includes(':') ? 0x21 : 0x11);
  head.writeUInt16BE(addresses.length + tlvs.length, 14);
  return Buffer.concat([head, addresses, tlvs]);
}

/** Returns the addresses of a header: `source` and any target, with ports. */
function addressesFrom(source: string): Buffer {
  const ports = Buffer.from([0xc3, 0x50, 0x07, 0x5b]);
  if (!source.includes(':'))
    return Buffer.concat([Buffer.from([...source.split('.').map(Number), 10, 0, 0, 1]), ports]);
  const [head = [], tail = []] = source.split('::').map((half) => (half === '' ? [] : half.split(':')));
  const groups = [...head, ...Array<string>(8 - head.length - tail.length).fill('0'), ...tail];
  const bytes = Buffer.alloc(16);
  for (const [n, group] of groups.entries()) bytes.writeUInt16BE(Number.parseInt(group, 16), 2 * n);
  return Buffer.concat([bytes, Buffer.alloc(16), ports]);
}
