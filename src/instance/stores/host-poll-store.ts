/** SQL of the poll that a host makes for all its workers. */
import { endedNumber } from '../../activity/activity-store.ts';
import { hasChangedHeads } from '../../attributes/update-store.ts';
import { limitsVersion } from '../../auth/tenant-limits-store.ts';
import {
  hasChangedCredentials,
  type LogPlace,
  placeValues,
  type SettledRow,
  settledColumns,
} from '../../device/sql/credential-log-store.ts';
import { lastDeviceNumber } from '../../device/sql/number-store.ts';
import { rolloutWaits } from '../../ota/rollout-store.ts';
import type { Queries } from '../../postgres/client.ts';
import { claimable } from '../../rpc/store.ts';

interface PolledRow extends SettledRow {
  credentials: boolean;
  heads: boolean;
  ended: number;
  tenantLimits: number;
  shardMap: number | null;
  rpcs: boolean;
  rollout: boolean;
  /** The last number that a device got; 0 before the first one, null on a standby. */
  lastDevice: number | null;
}

/** `seen`: what the previous poll has seen of the logs. */
export async function pollStore(queries: Queries, seen: LogPlace): Promise<PolledRow> {
  const [row] = await queries.query<PolledRow>(
    `select ${settledColumns}, coalesce(${hasChangedCredentials}, false) as credentials,
            coalesce(${hasChangedHeads}, false) as heads, (${endedNumber}) as ended,
            (${limitsVersion}) as "tenantLimits", (select version from shard_map) as "shardMap",
            exists (select from rpc where ${claimable}) as rpcs, ${rolloutWaits} as rollout,
            ${lastDeviceNumber} as "lastDevice"`,
    placeValues(seen),
  );
  return row!;
}
