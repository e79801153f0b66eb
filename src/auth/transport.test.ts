/** The proxies whose headers are trusted to name HTTPS. */
import { expect, test } from 'vitest';
import { Proxies } from './transport.ts';

function f(setting: string, remoteAddress: string, forwarded: string, secure = false): boolean {
  const proxies = new Proxies(setting);
  // A request of the HTTP server reads its headers from itself.
  class Caller {
    readonly fromProxy = proxies.isTrusted(remoteAddress);
    readonly secure = secure;
    readonly #forwarded = forwarded;

    header(): string {
      return this.#forwarded;
    }
  }
  return proxies.isSecure(new Caller());
}

test('TLS to this server is HTTPS, with any header', () => {
  expect(f('', '1.2.3.4', 'http', true)).toBe(true);
  expect(f('', '1.2.3.4', '')).toBe(false);
});

test('only a proxy of the settings is believed', () => {
  expect(f('', '10.0.0.7', 'https')).toBe(false);
  expect(f('10.0.0.7', '10.0.0.7', 'https')).toBe(true);
  expect(f('10.0.0.7', '10.0.0.8', 'https')).toBe(false);
  expect(f('10.0.0.0/24, fd00::/8', '10.0.0.200', 'https')).toBe(true);
  expect(f('10.0.0.0/24, fd00::/8', 'fd00:0000:0000:0000:0000:0000:0000:0001', 'https')).toBe(true);
  expect(f('10.0.0.0/24', '0000:0000:0000:0000:0000:ffff:0a00:0001', 'https')).toBe(true);
  expect(f('10.0.0.0/24', '', 'https')).toBe(false);
});

test('of several proxies the last one counts', () => {
  expect(f('10.0.0.7', '10.0.0.7', 'https, http')).toBe(false);
  expect(f('10.0.0.7', '10.0.0.7', 'http, https')).toBe(true);
});

test('a setting that names no address is refused', () => {
  for (const setting of ['proxy.example', '10.0.0.0/33', '10.0.0.0/8/8', '10.0.0.0/x']) {
    expect(() => new Proxies(setting)).toThrow('HTTP_TRUSTED_PROXIES');
  }
});
