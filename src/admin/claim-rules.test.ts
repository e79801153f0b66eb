import { describe, expect, test } from 'vitest';
import { dayMs } from '../base/durations.ts';
import { strictly } from '../value/lenient.ts';
import { Kind, type TypedValue } from '../value/typed.ts';
import { claimOf, claimOfAttribute, decodeClaim, isClaimValid, opensClaim } from './claim-rules.ts';

describe('the request of a device', () => {
  const f = (body: string) => {
    try {
      const { secretKey, durationMs } = decodeClaim(Buffer.from(body), strictly);
      return `'${secretKey}' for ${durationMs}`;
    } catch (error) {
      return (error as Error).message;
    }
  };

  test('may be nothing', () => {
    expect(f('')).toBe("'' for 0");
    expect(f('{}')).toBe("'' for 0");
    expect(f('{"secretKey":null,"durationMs":null}')).toBe("'' for 0");
  });

  test('is a secret and a time', () => {
    expect(f('{"secretKey":"plum","durationMs":60000,"more":[1]}')).toBe("'plum' for 60000");
    expect(f('{"durationMs":-5}')).toBe("'' for 0");
    expect(f('{"durationMs":1.9}')).toBe("'' for 1");
  });

  test('is refused when it is of another kind', () => {
    expect(f('[]')).toBe('A claim must be a JSON object.');
    expect(f('{"secretKey":5}')).toBe('Member "secretKey" must be a string.');
    expect(f('{"durationMs":"60000"}')).toBe('Member "durationMs" must be a number.');
  });
});

describe('a claim', () => {
  test('is valid for its own time, or for that of the setting', () => {
    expect(claimOf({ secretKey: '', durationMs: 60_000 }, 1_000, dayMs).expiresTime).toBe(61_000);
    expect(claimOf({ secretKey: '', durationMs: 0 }, 1_000, dayMs).expiresTime).toBe(1_000 + dayMs);
    expect(claimOf({ secretKey: '', durationMs: 1e300 }, 1_000, dayMs).expiresTime).toBe(Number.MAX_SAFE_INTEGER);
  });

  test('has expired at its last millisecond', () => {
    const claim = claimOf({ secretKey: '', durationMs: 100 }, 1_000, dayMs);
    expect(isClaimValid(claim, 1_099)).toBe(true);
    expect(isClaimValid(claim, 1_100)).toBe(false);
    expect(isClaimValid(undefined, 0)).toBe(false);
  });

  test('opens to its secret only; none and the empty one are equal', () => {
    const claim = claimOf({ secretKey: 'plum', durationMs: 0 }, 0, dayMs);
    expect(opensClaim(claim, 'plum')).toBe(true);
    expect(opensClaim(claim, 'Plum')).toBe(false);
    expect(opensClaim(claim, '')).toBe(false);
    expect(opensClaim(claimOf({ secretKey: '', durationMs: 0 }, 0, dayMs), '')).toBe(true);
  });
});

test('a claim may be a server attribute, as JSON or as a string', () => {
  const f = (kind: Kind, text: string) => {
    const value: TypedValue = { kind, num: 0, int: '0', text };
    const claim = claimOfAttribute(value);
    return claim && [opensClaim(claim, 'plum'), claim.expiresTime];
  };
  expect(f(Kind.json, '{"secretKey":"plum","expirationTime":5}')).toEqual([true, 5]);
  expect(f(Kind.string, '{"secretKey":"plum","expirationTime":5}')).toEqual([true, 5]);
  expect(f(Kind.json, '{"expirationTime":5}')).toEqual([false, 5]);
  expect(f(Kind.json, '{"secretKey":"plum"}')).toBeUndefined();
  expect(f(Kind.json, '[]')).toBeUndefined();
  expect(f(Kind.string, 'plum')).toBeUndefined();
  expect(f(Kind.long, '')).toBeUndefined();
  expect(claimOfAttribute(undefined)).toBeUndefined();
});
