import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { credentialsKind, Digester } from '../known/known-devices-file.ts';
import { CredentialsDigest } from './credentials-digest.ts';

test('the digest is that of the file, for credentials of each length and of all characters', () => {
  const key = randomBytes(32);
  const digest = new CredentialsDigest(key, credentialsKind);
  const digester = new Digester(key);
  const texts = Array.from({ length: 256 }, (_, length) => 'abcdefghijklmnopqrstuvwxyz'.repeat(10).slice(0, length));
  for (const text of [...texts, 'Größe', '量'.repeat(255), '😀'.repeat(127), '\u0000\u00ff', '\ud800x']) {
    const { d0, d1, d2, d3 } = digest.of(text);
    const bytes = digester.credentials(text);
    const words = [0, 4, 8, 12].map((at) => bytes.readUInt32LE(at));
    expect([d0, d1, d2, d3], JSON.stringify(text)).toEqual(words);
  }
});
