/** Makes the headers of a file that a client saves under its name (RFC 6266). */

const token = /^[A-Za-z0-9!#$&+.^_`|~-]+$/;

/** `fileName` has no control characters. ThingsBoard clients read `x-filename`. */
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

/** Percent-encodes an RFC 8187 value, including the characters that `encodeURIComponent` keeps. */
function encoded(name: string): string {
  return encodeURIComponent(name).replace(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}
