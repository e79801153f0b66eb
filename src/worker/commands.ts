/** Opens the commands to devices, and the answers to calls of devices. */
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { RpcNumbers } from '../rpc/numbers.ts';
import { PersistentRpcs } from '../rpc/persistent.ts';
import { Rpc } from '../rpc/send.ts';
import { RpcSessions } from '../rpc/sessions.ts';
import { Calls } from '../rules/calls.ts';
import { compileRule } from '../rules/table.ts';
import type { DeviceState } from './device-state.ts';
import type { Stores } from './stores.ts';
import type { WorkerDeps } from './worker-deps.ts';

export function openCommands(
  { link, begin, config, log, metrics, started }: WorkerDeps,
  { shards, postgres, bus, downlink, steadyClock }: Stores,
  { attributes }: DeviceState,
) {
  const numbers = new RpcNumbers(postgres);
  const rpc = new Rpc({ postgres, downlink, bus, numbers, clock, log, metrics });
  const rpcSessions = new RpcSessions(downlink);
  const { retriesMax, keptDays, clientTimeoutMs: timeoutMs } = config.rpc;
  const keeping = { retriesMax, keptDays, expiryTime: () => steadyClock.time(), onPoll: link.onPoll };
  const persistentRpcs = new PersistentRpcs({ postgres, rpc, numbers, downlink, clock, log, ...keeping });
  persistentRpcs.start();
  started.add('stored commands', (steps) => persistentRpcs.stop(Math.min(steps.msLeft, limits.rpcStopMsMax)));
  const rules = begin.rules.map(compileRule);
  const calls = new Calls({ rules, attributes, shards, clock, metrics, timeoutMs });
  return { rpc, rpcSessions, persistentRpcs, calls };
}

export type Commands = ReturnType<typeof openCommands>;
