/** Numbers of commands after a restore, and what PostgreSQL knows before a delivery. Against PostgreSQL. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { insertDevices } from '../../test/harness/inserted-devices.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import { claimRpcs, insertRpc, keepsRpc, releaseRpcs, skipRpcNumbers, takeNumbers, updateRpcStatus } from './store.ts';

let server: TestPostgres;
beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);
afterAll(() => server.stop(), 60_000);

test('numbers of every device are skipped, also of those without a command, over several statements', async () => {
  const { postgres } = server;
  const numbers = await insertDevices(postgres, 5);
  const first = numbers[0]!;
  await takeNumbers(postgres, [first], [3]);
  await skipRpcNumbers(postgres, 1000, 2);
  const ones = numbers.map(() => 1);
  const expected = numbers.map((number) => [number, number === first ? 1003 : 1000]);
  expect(await takeNumbers(postgres, numbers, ones)).toEqual(new Map(expected as [number, number][]));
});

test('before a delivery PostgreSQL names the older commands that wait at other owners that live', async () => {
  const { postgres } = server;
  const [device] = await insertDevices(postgres, 1);
  const [ids] = await postgres.query<{ id: string; tenant: string }>(
    'select id, tenant_id as tenant from device where number = $1',
    [device],
  );
  const [own, other] = [crypto.randomUUID(), crypto.randomUUID()];
  const insert = async (number: number, owner: string | null) => {
    const row = {
      id: createUuid(Date.now()),
      createdTime: 0,
      tenantId: ids!.tenant,
      deviceId: ids!.id,
      device: device!,
    };
    const command = { method: 'm', params: '{}', oneway: false, expirationTime: 9e12, retries: null };
    await insertRpc(postgres, { ...row, number, ...command, additionalInfo: null, callerCustomerId: null }, owner);
    return row.id;
  };
  const [taken, retried] = [await insert(1, other), await insert(2, other)];
  await insert(3, other);
  await insert(4, own);
  await insert(5, null);
  const id = await insert(6, own);
  await insert(7, other);
  await updateRpcStatus(postgres, taken, 'SENT', ['QUEUED'], { isFinal: false });
  await updateRpcStatus(postgres, retried, 'TIMEOUT', ['QUEUED'], { isFinal: false });
  expect(await keepsRpc(postgres, own, id)).toEqual({ isKept: true, older: [2, 3] });

  const leftMs = (ms: number) =>
    postgres.query(`update rpc set leased_until = now() + $2 * interval '1 ms' where number = 3 and device = $1`, [
      device,
      ms,
    ]);
  await leftMs(limits.rpcLeaseMs - limits.rpcSilentOwnerMs - 100);
  expect(await keepsRpc(postgres, own, id)).toEqual({ isKept: true, older: [2] });
  // A lease that was made before the clock was set back.
  await leftMs(10 * limits.rpcLeaseMs);
  expect(await keepsRpc(postgres, own, id)).toEqual({ isKept: true, older: [2] });

  await releaseRpcs(postgres, other, []);
  expect(await keepsRpc(postgres, own, id)).toEqual({ isKept: true, older: [] });
  await releaseRpcs(postgres, own, []);
  await claimRpcs(postgres, other, 100, { device: [], customer: [], tenant: [] });
  expect(await keepsRpc(postgres, own, id)).toEqual({ isKept: false, older: [] });
});
