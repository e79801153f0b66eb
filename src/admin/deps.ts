/** The collaborators of all changes by administrators; each change names those that it uses. */
import type { Clock } from '../base/clock.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import type { Postgres } from '../postgres/client.ts';
import type { GatewayNotices } from './gateway-notices.ts';
import type { TakenNames } from './taken-names.ts';

export interface AdminDeps {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
  /** The number of devices that a tenant may have; 0 = unlimited. */
  devicesMax: number;
  /** Called after a commit that may have changed the packages assigned to devices. */
  onAssigned?: () => void;
  /** Absent in processes that neither delete nor rename devices. */
  gatewayNotices?: GatewayNotices;
  /** Absent where no tenant chooses credentials, emails or keys. */
  takenNames?: TakenNames;
}

/** The collaborators of a change that makes devices. */
export type CreateDeps = Omit<AdminDeps, 'gatewayNotices'>;
