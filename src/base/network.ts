/**
 * The network of a caller's address, by which connections, wrong secrets and waiting callers are counted, because a
 * caller may own the neighbouring addresses. The network of an IPv6 address is its /64, in any spelling. An IPv4
 * address inside IPv6 counts as IPv4. Sign-ins with a password are counted by `subnetOf`, everything else by
 * `networkOf`.
 */

/** Each IPv4 address counts separately, and a /64 of IPv6. A string that is not an address is its own network. */
export function networkOf(address: string): string {
  return partOf(address, 4);
}

/** Like `networkOf`, but a /24 of IPv4: at the next sign-in a user may have another address of the same provider. */
export function subnetOf(address: string): string {
  return partOf(address, 3);
}

function partOf(address: string, ipv4Parts: 3 | 4): string {
  if (!address.includes(':')) return ipv4Parts === 4 ? address : address.split('.').slice(0, ipv4Parts).join('.');
  const groups = groupsOf(address);
  if (!groups) return address;
  const isIpv4 = groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff;
  if (!isIpv4)
    return groups
      .slice(0, 4)
      .map((group) => group.toString(16))
      .join(':');
  const bytes = [groups[6]! >> 8, groups[6]! & 255, groups[7]! >> 8, groups[7]! & 255];
  return bytes.slice(0, ipv4Parts).join('.');
}

/** Returns the eight groups of an IPv6 address; undefined when the string is no IPv6 address. */
function groupsOf(address: string): number[] | undefined {
  const [plain = ''] = address.split('%');
  const ipv4 = /^(.*:)(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(plain);
  const [a, b, c, d] = ipv4 ? ipv4.slice(2).map(Number) : [];
  const text = ipv4 ? `${ipv4[1]}${((a! << 8) | b!).toString(16)}:${((c! << 8) | d!).toString(16)}` : plain;
  const halves = text.split('::');
  if (halves.length > 2) return undefined;
  const [head = [], tail = []] = halves.map((half) => (half === '' ? [] : half.split(':')));
  const missing = 8 - head.length - tail.length;
  if (halves.length === 2 ? missing < 0 : missing !== 0) return undefined;
  const groups = [...head, ...Array<string>(halves.length === 2 ? missing : 0).fill('0'), ...tail];
  return groups.every((group) => /^[0-9a-f]{1,4}$/i.test(group))
    ? groups.map((group) => Number.parseInt(group, 16))
    : undefined;
}
