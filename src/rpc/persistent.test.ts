/** Which stored commands a worker claims. */

import { describe, expect, it, vi } from 'vitest';
import { sharedApi } from '../../test/harness/api-handlers.ts';
import { deafBus } from '../../test/harness/deaf-bus.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { systemClock as clock } from '../base/clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { openChannels } from '../downlink/device-channels.ts';
import { Downlink } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import { RpcNumbers } from './numbers.ts';
import { PersistentRpcs } from './persistent.ts';
import type { Rpc } from './send.ts';
import { claimRpcs, findRpc } from './store.ts';
import type { Command } from './waiters.ts';

const { tokenOf, create, postgres } = await sharedApi();

describe('stored commands without an owner', () => {
  it('are claimed although those of a tenant without room are older, and more than one claim takes', async () => {
    const device = async (jwt: string) => {
      const { id, tenantId } = await create(jwt);
      const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [id.id]);
      return { id: id.id, tenantId: tenantId.id, number: row!.number };
    };
    const [full, other] = [
      await device(await tokenOf()),
      await device(await tokenOf('tenant@thingsboard.org', 'tenant')),
    ];
    const insert = ({ id, tenantId, number }: typeof full, prefix: string, count: number) =>
      postgres.query(
        `insert into rpc (id, created_time, tenant_id, device_id, device, number, method, params, oneway, expiration_time)
         select ($1 || lpad(n::text, 12, '0'))::uuid, 0, $2, $3, $4, n, 'm', '{}', true, 9000000000000
           from generate_series(1, $5) as n`,
        [prefix, tenantId, id, number, count],
      );
    // So many that their leases run out before all of them were claimed once.
    await insert(full, '00000000-0000-0000-0000-', 7 * limits.rpcClaimMax);
    await insert(other, '00000000-0000-0000-0001-', 1);
    const held: number[] = [];
    const noRoom = new Fault('rpc_tenant_full', 'no room');
    const rpc = {
      room: 10_000,
      hold(command: { tenantId: string; device: number }) {
        if (command.tenantId === full.tenantId) throw noRoom;
        held.push(command.device);
      },
      drop() {},
      hasSession: () => false,
    } as unknown as Rpc;
    const downlink = new Downlink({ bus: deafBus, channels: openChannels(deafBus), log, metrics: new Metrics() });
    await downlink.start();
    const numbers = new RpcNumbers(postgres);
    const keeping = { retriesMax: 5, keptDays: 0, expiryTime: async () => undefined };
    const persistent = new PersistentRpcs({ postgres, rpc, numbers, downlink, clock, log, ...keeping });
    persistent.start();
    await vi.waitFor(() => expect(held).toEqual([other.number]), { timeout: 20_000 });
    await persistent.stop();
    await postgres.query('delete from rpc where device = any($1)', [[full.number, other.number]]);
  });

  it('are claimed although their owner stopped while the clock was ahead', async () => {
    const { id, tenantId } = await create(await tokenOf());
    const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [id.id]);
    const rpcId = '00000000-0000-0000-0002-000000000001';
    await postgres.query(
      `insert into rpc (id, created_time, tenant_id, device_id, device, number, method, params, oneway, expiration_time,
                        owner, leased_until)
       values ($1, 0, $2, $3, $4, 1, 'm', '{}', true, 9000000000000, '00000000-0000-0000-0003-000000000000', now() + interval '1 year')`,
      [rpcId, tenantId.id, id.id, row!.number],
    );
    const nobody = { device: [], customer: [], tenant: [] };
    const claimed = await claimRpcs(postgres, '00000000-0000-0000-0003-000000000001', 10_000, nobody);
    expect(claimed.map((command) => command.id)).toContain(rpcId);
    expect(await claimRpcs(postgres, '00000000-0000-0000-0003-000000000002', 10_000, nobody)).toEqual([]);
    await postgres.query('delete from rpc where device = $1', [row!.number]);
  });
});

it('a command whose device is deleted before the command is stored is refused', async () => {
  const { id, tenantId } = await create(await tokenOf());
  const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [id.id]);
  const numbers = {
    async next() {
      await postgres.query('delete from device_credentials where device_id = $1', [id.id]);
      await postgres.query('delete from device where id = $1', [id.id]);
      return 1;
    },
  } as unknown as RpcNumbers;
  const downlink = new Downlink({ bus: deafBus, channels: openChannels(deafBus), log, metrics: new Metrics() });
  const rpc = { refusal: () => undefined } as unknown as Rpc;
  const keeping = { retriesMax: 5, keptDays: 0, expiryTime: async () => undefined };
  const persistent = new PersistentRpcs({ postgres, rpc, numbers, downlink, clock, log, ...keeping });
  const owner = {
    tenantId: tenantId.id,
    customerId: null,
    callerCustomerId: null,
    device: row!.number,
    deviceId: id.id,
  };
  const command = { method: 'open', params: '{}', oneway: true, expirationTime: clock.now() + 10_000 };
  const stored = persistent.create({ ...owner, ...command, retries: null, additionalInfo: null });
  await expect(stored).rejects.toMatchObject({ status: 404 });
});

it('a delivery that PostgreSQL did not take is written when PostgreSQL answers again', async () => {
  const { id, tenantId } = await create(await tokenOf());
  const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [id.id]);
  let isAway = false;
  let refused = 0;
  const fragile: Queries = {
    query: async (...asked) => {
      if (isAway) {
        refused += 1;
        throw unavailable('postgres_away', 'away');
      }
      return await postgres.query(...asked);
    },
  };
  const held: Command[] = [];
  const rpc = {
    room: 10,
    refusal: () => undefined,
    hold: (command: Command) => held.push(command),
    drop() {},
    hasSession: () => false,
  } as unknown as Rpc;
  const downlink = new Downlink({ bus: deafBus, channels: openChannels(deafBus), log, metrics: new Metrics() });
  const numbers = new RpcNumbers(postgres);
  const keeping = { retriesMax: 5, keptDays: 0, expiryTime: async () => undefined };
  const persistent = new PersistentRpcs({ postgres: fragile, rpc, numbers, downlink, clock, log, ...keeping });
  persistent.start();
  const owner = { tenantId: tenantId.id, customerId: null, callerCustomerId: null, device: row!.number };
  const command = { method: 'open', params: '{}', oneway: false, expirationTime: clock.now() + 100_000 };
  const rpcId = await persistent.create({ ...owner, deviceId: id.id, ...command, retries: null, additionalInfo: null });
  const status = async () => (await findRpc(postgres, tenantId.id, rpcId))?.status;
  held[0]!.stage = 'taken';
  held[0]!.taken();
  await vi.waitFor(async () => expect(await status()).toBe('SENT'));
  isAway = true;
  held[0]!.confirmed(true);
  await vi.waitFor(() => expect(refused).toBeGreaterThan(0));
  isAway = false;
  // Another owner would deliver the command again.
  await vi.waitFor(async () => expect(await status()).toBe('DELIVERED'), { timeout: 10_000 });
  await persistent.stop();
});
