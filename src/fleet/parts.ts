/** What every change of the fleet needs. */
import type { Clock } from '../base/clock.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import type { Postgres } from '../postgres/client.ts';

export interface FleetParts {
  postgres: Postgres;
  changes: CredentialChanges;
  clock: Clock;
  /** After a commit: devices may have other packages now than they were told of. */
  onAssigned?: () => void;
}
