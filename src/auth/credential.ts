/** Chooses the credential in a request's headers (docs/rest.md#sign-in): any JWT takes precedence over any API key. */

interface Credential {
  scheme: 'Bearer' | 'ApiKey';
  value: string;
}

/**
 * `headers` returns all values of a header. A proxy may have joined repeated values with commas, which no credential
 * contains. The scheme is case-sensitive. A header with another scheme, or with none, is ignored.
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
