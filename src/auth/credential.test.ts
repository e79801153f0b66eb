import { describe, expect, it } from 'vitest';
import { chooseCredential } from './credential.ts';

const choose = (headers: Record<string, string[]>) => chooseCredential((name) => headers[name] ?? []);
const bearer = (value: string) => ({ scheme: 'Bearer', value });
const apiKey = (value: string) => ({ scheme: 'ApiKey', value });

describe('chooseCredential', () => {
  it.each([
    [{}, undefined],
    [{ 'x-authorization': ['Bearer a'] }, bearer('a')],
    [{ authorization: ['Bearer a'] }, bearer('a')],
    [{ 'x-authorization': [''], authorization: ['Bearer a'] }, bearer('a')],
    [{ 'x-authorization': ['Bearer a'], authorization: ['Bearer b'] }, bearer('a')],
    [{ 'x-authorization': ['ApiKey k'] }, apiKey('k')],
    [{ 'x-authorization': ['ApiKey k'], authorization: ['Bearer b'] }, bearer('b')],
    [{ 'x-authorization': ['ApiKey k', 'Bearer b'] }, bearer('b')],
    [{ 'x-authorization': ['ApiKey k, Bearer b'] }, bearer('b')],
    [{ 'x-authorization': ['Bearer'] }, bearer('')],
    [{ 'x-authorization': ['bearer a'] }, undefined],
    [{ authorization: ['Basic dTpw'] }, undefined],
  ])('%j → %j', (headers, expected) => {
    expect(choose(headers as Record<string, string[]>)).toEqual(expected);
  });
});
