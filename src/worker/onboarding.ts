/** Opens the making, claiming and provisioning of devices, and the devices of gateways. */
import { GatewayNotices } from '../admin/gateway-notices.ts';
import { TakenNames } from '../admin/taken-names.ts';
import { WrongTries } from '../auth/wrong-tries.ts';
import { systemClock as clock } from '../base/clock.ts';
import { unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Turns } from '../base/turns.ts';
import { Gateways } from '../gateway/gateways.ts';
import { ChildNames } from '../gateway/names.ts';
import { CertificateProvisioner } from '../onboarding/certificate-provision.ts';
import type { ClaimDeps } from '../onboarding/claim.ts';
import { type ChildRequest, findOrCreateChildren } from '../onboarding/gateway-children.ts';
import type { ProvisionDeps } from '../onboarding/provision.ts';
import type { Commands } from './commands.ts';
import type { DeviceState } from './device-state.ts';
import type { Identity } from './identity.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openOnboarding(
  { config, log, metrics, started, proxies }: WorkerDeps,
  { postgres, exchange }: Stores,
  { devices, known, changes, troubles }: Identity,
  { sessions, attributes, updates, rollout, tenantLimits }: DeviceState,
  { rpcSessions, persistentRpcs }: Commands,
) {
  const { childrenMax, customerScope } = config.gateway;
  const gatewayNotices = new GatewayNotices({ postgres, persistentRpcs, clock, log, customerScope });
  const takenNames = new TakenNames({ clock, log, metrics });
  const onAssigned = rollout.wake;
  const limitsOf = (tenantId: string) => tenantLimits.of(tenantId);
  const onLimits = () => tenantLimits.changed();
  const admin = { postgres, changes, clock, limitsOf, onLimits, onAssigned, gatewayNotices, takenNames };
  const turns = new Turns({
    atOnceMax: limits.onboardingAtOnceMax,
    waitingMax: limits.onboardingWaitingMax,
    refusal: () => unavailable('onboarding', 'Too many devices are provisioned or claimed at once; try again later.'),
  });
  const claims: ClaimDeps = { ...admin, attributes, log, claiming: config.claiming, turns };
  const { wrongKeysPerMinuteMax: wrongMax } = config.provisioning;
  const wrongKeys = new WrongTries({
    exchange,
    topic: 'wrong-provisioning-keys',
    wrongMax,
    reason: 'guesses',
    message: 'Too many wrong keys from this address; try again later.',
    isTrustedProxy: (address) => proxies.isTrusted(address),
    clock,
  });
  started.add('wrong provisioning keys', () => wrongKeys.stop());
  const provisioning: ProvisionDeps = { ...admin, wrongKeys, log, turns };
  const certificates = new CertificateProvisioner(provisioning);

  const findOrCreate = (tenant: string, requests: ChildRequest[]) => findOrCreateChildren(admin, tenant, requests);
  const names = new ChildNames({ findOrCreate, clock, customerScope, withoutStore: known });
  changes.onChange((change) => names.changed(change));
  const { monotonic } = clock;
  const scope = { childrenMax, customerScope };
  const gatewayDeps = { sessions, devices, names, updates, rpcSessions, troubles, monotonic, ...scope };
  return { admin, claims, provisioning, certificates, gateways: new Gateways(gatewayDeps, metrics) };
}

export type Onboarding = Awaited<ReturnType<typeof openOnboarding>>;
