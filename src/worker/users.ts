/** Opens the sign-in of users and API keys, and the limits of their calls. */
import { availableParallelism } from 'node:os';
import { ApiKeys } from '../auth/api-keys.ts';
import { openAuth } from '../auth/auth.ts';
import { FailedSignIns } from '../auth/failed-sign-ins.ts';
import { openJwt } from '../auth/jwt.ts';
import { costOf, PasswordHasher } from '../auth/password.ts';
import { callsFull } from '../auth/request-callers.ts';
import { RequestLimits } from '../auth/request-limits.ts';
import { systemClock as clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Config } from '../base/settings/config.ts';
import { Turns } from '../base/turns.ts';
import { querySlots } from '../clickhouse/embedded/settings.ts';
import type { DeviceState } from './device-state.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export async function openUsers(
  { config, begin, log, started, proxies }: WorkerDeps,
  { postgres, bus, exchange, steadyClock }: Stores,
  { tenantLimits }: DeviceState,
) {
  const { signInQueueMax, passwordCost, failedLoginsMax, requireHttpsForApiKeys } = config.auth;
  const passwords = new PasswordHasher(signInQueueMax, costOf(passwordCost));
  started.add('passwords', () => passwords.close());
  const jwt = await openJwt(postgres, config.auth, clock);
  const purgeTime = () => steadyClock.time();
  const apiKeys = new ApiKeys({ postgres, bus, clock, log, ...(begin.slot === 0 && { purgeTime }) });
  await apiKeys.start();
  started.add('API keys', () => apiKeys.stop());
  if (!requireHttpsForApiKeys && begin.slot === 0) {
    log.warn('api_keys_over_http', {
      reason:
        'API keys are accepted over plain HTTP, where they can be read on their way: serve HTTPS (SSL_ENABLED, or a proxy) and set SECURITY_REQUIRE_HTTPS_FOR_API_KEYS.',
    });
  }
  const requestLimits = new RequestLimits({ settings: config.rateLimits.rest, exchange, clock });
  tenantLimits.onProfiles((profiles) => requestLimits.useProfiles(profiles));
  const failedSignIns = new FailedSignIns(clock);
  const signIn = { postgres, passwords, jwt, clock, failedLoginsMax, failedSignIns };
  const waitingCalls = {
    waitingMax: limits.restCallsWaitingMax,
    refusal: callsFull,
  };
  const calls = new Turns({ atOnceMax: limits.restCallsPerConnection * config.postgres.poolMax, ...waitingCalls });
  const pageReads = new Turns({ atOnceMax: pagesAtOnce(config.postgres.poolMax), ...waitingCalls });
  const telemetryReads = new Turns({ atOnceMax: readsAtOnce(config, begin.workers), ...waitingCalls });
  const lookUps = new Turns({
    atOnceMax: limits.signInReadsAtOnceMax,
    waitingMax: limits.signInReadsWaitingMax,
    refusal: () => new Fault('sign_in_queue', 'Too many sign-ins at once; try again.', 1),
  });
  const auth = openAuth({
    ...signIn,
    apiKeys,
    proxies,
    requireHttpsForApiKeys,
    requestLimits,
    calls,
    pageReads,
    telemetryReads,
    lookUps,
  });
  return { auth, apiKeys };
}

/**
 * A page uses one connection. Its statements may keep processors busy, so most connections are left to other ones, and
 * one always is.
 */
function pagesAtOnce(poolMax: number): number {
  return Math.min(poolMax - 1, Math.max(2, Math.floor((poolMax * 3) / 8)));
}

/**
 * Returns this worker's part of the statements that the embedded ClickHouse runs at once beside inserts. The engine
 * shares the processors with this worker: more reads at once than processors make each read slower and none sooner.
 */
function readsAtOnce({ clickhouse: { url, embedded } }: Config, workers: number): number {
  if (url !== '') return limits.telemetryReadsAtOnceMax;
  // With two places one tenant never has both.
  const ofEngine = Math.floor(querySlots(embedded.sessions) / workers);
  return Math.max(2, Math.min(ofEngine, availableParallelism() + 1));
}
