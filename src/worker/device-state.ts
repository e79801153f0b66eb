/** Opens the state of devices beside telemetry: limits, activity, sessions, attributes, packages, diagnostics. */
import { Activity } from '../activity/activity.ts';
import { Admission } from '../activity/admission.ts';
import { TenantUsage } from '../activity/tenant-usage.ts';
import { Attributes } from '../attributes/attributes.ts';
import { AttributeUpdates } from '../attributes/followers.ts';
import { notifyShared } from '../attributes/notify.ts';
import { AttributeWriter, type SharedChange } from '../attributes/writer.ts';
import { RateLimits } from '../auth/rate-limits.ts';
import { TenantLimits } from '../auth/tenant-limits.ts';
import { systemClock as clock } from '../base/clock.ts';
import { lookUpDevices } from '../device/sql/look-up-store.ts';
import { Diagnostics, type LiveSession } from '../diagnostics/diagnostics.ts';
import { type DeviceSession, Sessions } from '../downlink/sessions.ts';
import { Downloads } from '../ota/downloads.ts';
import { Rollout } from '../ota/rollout.ts';
import { DeviceKeys } from '../telemetry/device-keys.ts';
import { readSomeKeys } from '../telemetry/latest.ts';
import type { Channel } from './channel.ts';
import type { Identity } from './identity.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openDeviceState(deps: WorkerDeps, stores: Stores, identity: Identity, { ingest }: Channel) {
  const limited = await openAdmission(deps, stores);
  const sessions = openSessions(deps, stores, identity, limited.activity);
  const diagnostics = await openDiagnostics(deps, stores, identity, sessions);
  const { attributes, updates } = openAttributes(deps, stores);
  const packages = openPackages(deps, stores, identity, { ingest, attributes });
  return { ...limited, sessions, diagnostics, attributes, updates, ...packages };
}

/** Opens what admits a message: rate limits, quotas and keys; and what notes it: usage and activity. */
async function openAdmission({ link, begin, config, log, started }: WorkerDeps, stores: Stores) {
  const { postgres, bus, exchange, shards } = stores;
  const { devices: devicesMax, keysPerDevice: keysPerDeviceMax } = config.limits;
  const { onPoll } = link;
  const tenantLimits = new TenantLimits({ postgres, bus, clock, log, devicesMax, keysPerDeviceMax, onPoll });
  await tenantLimits.start();
  started.add('limits of tenants', () => tenantLimits.stop());
  const rateLimits = new RateLimits({ settings: config.rateLimits, exchange, clock });
  tenantLimits.onProfiles((profiles) => rateLimits.useProfiles(profiles));
  const { inactivitySeconds, checkSeconds } = config.activity;
  // One worker of an instance checks for silent devices.
  const checkMs = begin.slot === 0 ? checkSeconds * 1000 : 0;
  const activity = new Activity({ postgres, clock, log, inactivityMs: inactivitySeconds * 1000, checkMs, onPoll });
  await activity.start();
  started.add('activity of devices', () => activity.stop());
  const usage = new TenantUsage({ postgres, clock, log });
  started.add('usage of tenants', () => usage.stop());
  tenantLimits.onProfiles((profiles) => usage.useProfiles(profiles));
  const readKeys = async (device: number, most: number) => await readSomeKeys(shards.of(device), device, most);
  const deviceKeys = new DeviceKeys({ keysMax: keysPerDeviceMax, readKeys, clock });
  tenantLimits.onProfiles((profiles) => deviceKeys.useProfiles(profiles));
  const admission = new Admission({ rateLimits, usage, deviceKeys, touch: activity.touch });
  return { tenantLimits, rateLimits, activity, admission };
}

/** A device has one session, wherever it connects, for as long as its credentials are valid. */
function openSessions(
  { log, metrics, started }: WorkerDeps,
  { postgres, bus, channels }: Stores,
  { devices, changes }: Identity,
  activity: Activity,
): Sessions {
  const sessions = new Sessions({
    bus,
    channels: channels.sessions,
    devices,
    lookUp: (numbers) => lookUpDevices(postgres, numbers),
    onConnected: (device) => activity.connected(device),
    onDisconnected: (device) => activity.disconnected(device),
    clock,
    log,
    metrics,
  });
  changes.onChange((change) => sessions.changed(change));
  started.add('sessions', () => sessions.stop());
  return sessions;
}

/** Opens the lists of devices with trouble, which the diagnostics of all workers show together. */
async function openDiagnostics(
  { started }: WorkerDeps,
  { bus }: Stores,
  { changes, troubles, oddTimes, strangers }: Identity,
  sessions: Sessions,
): Promise<Diagnostics> {
  changes.onChange((change) => change !== 'all' && change.deleted && troubles.forget(change.deviceNumber));
  const sessionOf = (device: number) => liveSession(sessions.get(device));
  const diagnostics = new Diagnostics({ bus, troubles, oddTimes, strangers, sessionOf });
  await diagnostics.start();
  started.add('diagnostics', () => diagnostics.stop());
  return diagnostics;
}

/** One writer of attributes serves all doors; followers of a device receive shared attributes. */
function openAttributes({ link, config, log, metrics, started }: WorkerDeps, { postgres, downlink }: Stores) {
  const onShared = (change: SharedChange) => notifyShared(downlink, change);
  const attributeWriter = new AttributeWriter({ postgres, clock, metrics, onShared });
  started.add('attributes', () => attributeWriter.idle());
  const attributes = new Attributes(postgres, attributeWriter);
  const { onPoll } = link;
  const { lossFreeUpdates: lossFree } = config.attributes;
  const updates = new AttributeUpdates({ postgres, downlink, clock, log, metrics, lossFree, onPoll });
  updates.start();
  started.add('updates of attributes', () => updates.stop());
  return { attributes, updates };
}

/** Opens the files of packages, the devices that may have them, and the rollout. */
function openPackages(
  { link, log, metrics, started }: WorkerDeps,
  { postgres }: Stores,
  { changes }: Identity,
  { ingest, attributes }: Pick<Channel, 'ingest'> & { attributes: Attributes },
) {
  const downloads = new Downloads({ postgres, clock, metrics });
  changes.onChange((change) => (change === 'all' ? downloads.forgetAll() : downloads.forget(change.deviceNumber)));
  const rollout = new Rollout({ postgres, ingest, attributes, clock, log, metrics, onPoll: link.onPoll });
  rollout.start();
  started.add('rollout of packages', () => rollout.stop());
  return { downloads, rollout };
}

export type DeviceState = Awaited<ReturnType<typeof openDeviceState>>;

function liveSession(session: DeviceSession | undefined): LiveSession | undefined {
  if (session === undefined) return undefined;
  const { remoteAddress = '', through } = session.owner;
  return { connectedAt: session.openedAt, address: remoteAddress, gateway: through?.number ?? null };
}
