/** The version of this program, as `package.json` names it. */
import { readFileSync } from 'node:fs';

export function ownVersion(): string {
  const file = new URL('../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;
}
