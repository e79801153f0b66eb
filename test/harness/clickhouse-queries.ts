/** Queries a ClickHouse over its own interface, beside the engine that writes to it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface ClickhouseAddress {
  url: string;
  user: string;
  password: string;
}

/** Returns the address of the embedded ClickHouse of this data directory. */
export function embeddedAddress(dataDir: string): ClickhouseAddress {
  return JSON.parse(readFileSync(join(dataDir, 'run', 'clickhouse.json'), 'utf8')) as ClickhouseAddress;
}

export async function queryClickhouse(address: ClickhouseAddress, sql: string): Promise<string[][]> {
  const text = await askClickhouse(address, `${sql} FORMAT TabSeparated`);
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split('\t'));
}

/** The deadline is generous: a crash run reads back all that it wrote, on a machine that may do much else. */
export async function askClickhouse({ url, user, password }: ClickhouseAddress, sql: string): Promise<string> {
  const response = await fetch(`${url}/?database=millrace`, {
    method: 'POST',
    headers: { authorization: `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}` },
    body: sql,
    signal: AbortSignal.timeout(600_000),
  });
  const text = await response.text();
  if (response.status !== 200) throw new Error(`ClickHouse ${response.status}: ${text}`);
  return text;
}
