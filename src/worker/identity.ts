/** Opens the parts that authenticate devices: the token cache, logins, and the changes of credentials. */
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { CredentialChanges } from '../device/credential-changes.ts';
import { FleetLoad } from '../device/fleet-load.ts';
import { KnownDevices } from '../device/known/known-devices.ts';
import { knownFile } from '../device/known/known-devices-file.ts';
import { LocalDevices } from '../device/local-devices.ts';
import { Logins } from '../device/logins.ts';
import { lookUpLogins, lookUpProfileTransports, lookUpTokens } from '../device/sql/look-up-store.ts';
import { TokenCache } from '../device/token-cache.ts';
import { FirstRecords } from '../diagnostics/first-records.ts';
import { OddTimesOfDevices } from '../diagnostics/odd-times.ts';
import { Strangers } from '../diagnostics/strangers.ts';
import { Troubles } from '../diagnostics/troubles.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openIdentity(
  { link, begin, config, log, metrics, started }: WorkerDeps,
  { postgres, bus, downlink }: Stores,
) {
  const devices = new LocalDevices();
  const known = new KnownDevices({ path: knownFile(config.data.dir), clock, log, metrics });
  started.add('file of known devices', () => known.close());
  const tokens = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, devices, clock, known);
  metrics.observed('token_cache_devices', 'Devices known by token, added up over workers.', () => tokens.size);
  metrics.observed('token_cache_bytes', 'Memory of their records, added up over workers.', () => tokens.byteSize);
  const source = Buffer.from(begin.installation, 'hex');
  const load = new FleetLoad({ path: knownFile(config.data.dir), source, tokens, postgres, clock, log });
  started.add('load of devices', () => load.stop());
  const logins = new Logins({
    withoutStore: known,
    lookUp: (credentialsIds) => lookUpLogins(postgres, credentialsIds),
    lookUpProfiles: (ids) => lookUpProfileTransports(postgres, ids),
    clock,
    log,
  });
  const onAnswered = () => known.storeAnswers();
  const changes = new CredentialChanges({ postgres, bus, clock, log, onAnswered, onPoll: link.onPoll });
  changes.onLogged(({ deviceNumber, keepsAccess }) => {
    if (!keepsAccess) known.changed(deviceNumber);
  });
  changes.onChange((change) => (change === 'all' ? tokens.clear() : tokens.invalidate(change.credentialsId)));
  changes.onChange((change) => {
    if (change === 'all') load.restart();
  });
  changes.onChange((change) => logins.changed(change));
  changes.onChange((change) => {
    if (change === 'all') downlink.closeAll('credentials_changed');
    else downlink.close(change.deviceNumber, change.deleted ? 'device_deleted' : 'credentials_changed');
  });
  await changes.start();
  started.add('changes of credentials', () => changes.stop());
  return { ...openRecords(metrics), devices, known, tokens, logins, changes };
}

/** The records of devices with trouble. */
function openRecords(metrics: Metrics) {
  const first = new FirstRecords({ clock, metrics });
  const oddTimes = new OddTimesOfDevices({ clock, metrics, first });
  return { oddTimes, troubles: new Troubles({ clock, metrics, first, oddTimes }), strangers: new Strangers(clock) };
}

export type Identity = Awaited<ReturnType<typeof openIdentity>>;
