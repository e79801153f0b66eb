/** Which of the credentials in a request's headers counts (docs/rest.md#sign-in): any JWT goes before any API key. */

export interface Credential {
  scheme: 'Bearer' | 'ApiKey';
  value: string;
}

/**
 * `headers` gives all values of a header. A proxy may have joined repeated ones with commas, which no credential holds.
 * The scheme word is case-sensitive; with another scheme, or none, there is no credential.
 */
export function chooseCredential(headers: (name: string) => string[]): Credential | undefined {
  let apiKey: Credential | undefined;
  for (const name of ['x-authorization', 'authorization']) {
    for (const part of headers(name).flatMap((value) => value.split(','))) {
      const text = part.trim();
      const space = text.indexOf(' ');
      const scheme = space < 0 ? text : text.slice(0, space);
      const value = space < 0 ? '' : text.slice(space + 1).trim();
      if (scheme === 'Bearer') return { scheme, value };
      if (scheme === 'ApiKey') apiKey ??= { scheme, value };
    }
  }
  return apiKey;
}
