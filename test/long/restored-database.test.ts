/**
 * PostgreSQL alone is restored to an earlier moment, and has had more transactions since than the file of known devices
 * names: a token that only the file has is refused, and a token that the restored database has is accepted. The rows
 * are restored from a dump on the same server, or the files of the server are those of an earlier moment.
 */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { copyDirectory } from '../harness/data-directory.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { call } from '../harness/tenants.ts';

let servers: DebianPostgres;
let node: PostgresNode;
let engine: Engine;

beforeEach(async () => {
  servers = new DebianPostgres();
  node = await servers.primary();
  engine = await startEngine({ workers: 2, env: { DATABASE_URL: node.url } });
}, 120_000);

afterEach(async () => {
  await engine?.destroy();
  await servers.remove([node]);
}, 60_000);

async function statuses(tokens: string[]): Promise<number[]> {
  const post = async (token: string) => {
    const init = { method: 'POST', headers: { connection: 'close' }, body: '{"a":1}' };
    const answer = await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, init);
    await answer.arrayBuffer();
    return answer.status;
  };
  return await Promise.all(tokens.map(post));
}

interface Tokens {
  /** Those of the restored database. */
  valid: string[];
  /** Those that were made after the moment to which the database is restored. */
  lost: string[];
}

/** Changes devices after `saved` has saved the database. */
async function changeAfter(saved: () => Promise<void>): Promise<Tokens> {
  const names = ['kept', 'moved', 'deleted'].map((name) => ({ name }));
  const [kept, moved, deleted] = (await engine.api.createDevices(names)) as [Device, Device, Device];
  const valid = [kept, moved, deleted].map(({ token }) => token);
  expect(await statuses(valid)).toEqual([200, 200, 200]);
  await engine.knowsDevices();
  await saved();
  const credentials = await call(engine.api, 'GET', `/api/device/${moved.id}/credentials`);
  const credentialsId = `${moved.token}-new`;
  await call(engine.api, 'POST', '/api/device/credentials', { ...credentials, credentialsId });
  await call(engine.api, 'DELETE', `/api/device/${deleted.id}`);
  const { token } = await engine.api.createDevice('later');
  const lost = [credentialsId, token];
  expect(await statuses(lost)).toEqual([200, 200]);
  await engine.knowsDevices();
  return { valid, lost };
}

async function isAsTheDatabase({ valid, lost }: Tokens): Promise<void> {
  await eventually(() => engine.events('devices_loaded').length >= 2, 20_000);
  for (let round = 0; round < 10; round += 1) {
    expect(await statuses(lost)).toEqual([401, 401]);
    expect(await statuses(valid)).toEqual([200, 200, 200]);
  }
}

const dump = () => join(engine.dataDir, 'dump');

async function restoreDump(): Promise<void> {
  await node.sql('drop database millrace with (force)', 'postgres');
  await node.sql('create database millrace', 'postgres');
  await node.program('pg_restore', '-d', 'millrace', dump());
}

test('a dump that is restored while the host is stopped', async () => {
  const tokens = await changeAfter(() => node.program('pg_dump', '-Fc', '-f', dump(), 'millrace'));
  await engine.stop();
  await restoreDump();
  await engine.start();
  await isAsTheDatabase(tokens);
  await engine.restart();
  await isAsTheDatabase(tokens);
}, 120_000);

test('a dump that is restored while the host runs', async () => {
  const tokens = await changeAfter(() => node.program('pg_dump', '-Fc', '-f', dump(), 'millrace'));
  await restoreDump();
  // Both workers, very likely.
  const isRefused = async () => (await statuses(Array(10).fill(tokens.lost).flat())).every((status) => status === 401);
  await eventually(isRefused, 20_000);
  await isAsTheDatabase(tokens);
}, 120_000);

test('the files of an earlier moment, on which another host has worked since', async () => {
  const files = `${node.dir}-saved`;
  const save = async () => {
    await node.stop();
    copyDirectory(node.dir, files);
    await node.start();
    await eventually(async () => (await engine.status()).parts?.['postgres'] === 'up', 30_000);
  };
  const tokens = await changeAfter(save);
  await engine.stop();
  await node.stop();
  rmSync(node.dir, { recursive: true });
  copyDirectory(files, node.dir);
  await node.start();
  await node.sql(`do $$ begin for n in 1..500 loop perform pg_current_xact_id(); commit; end loop; end $$`);
  await engine.start();
  await isAsTheDatabase(tokens);
}, 120_000);
