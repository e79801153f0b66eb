/** The headers of a file that is to be saved under its name (RFC 6266). */

const token = /^[A-Za-z0-9!#$&+.^_`|~-]+$/;

/** `fileName` has no control characters. Clients of the family read `x-filename`. */
export function attachmentHeaders(fileName: string): Record<string, string> {
  return { 'Content-Disposition': `attachment;${nameParameters(fileName)}`, 'x-filename': headerText(fileName) };
}

function nameParameters(name: string): string {
  if (token.test(name)) return `filename=${name}`;
  if (isAscii(name) && !/["\\%]/.test(name)) return `filename="${name}"`;
  const plain = name.replace(/[^\x20-\x7e]|["\\%]/gu, '_');
  return `filename="${plain}";filename*=UTF-8''${encoded(name)}`;
}

function headerText(name: string): string {
  return isAscii(name) ? name : encoded(name);
}

function isAscii(name: string): boolean {
  return /^[\x20-\x7e]*$/.test(name);
}

/** Percent-encoded as an RFC 8187 value: what `encodeURIComponent` leaves but the RFC does not. */
function encoded(name: string): string {
  return encodeURIComponent(name).replace(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}
