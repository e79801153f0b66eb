/** One process of a connected and silent fleet, which connects and reconnects on demand. */
import { FleetDevices, type FleetDone, type FleetOrder } from './fleet-devices.ts';

export type FleetTask = { kind: 'connect'; order: FleetOrder } | { kind: 'storm' } | { kind: 'tell' };

export interface FleetNote extends FleetDone {
  kind: 'connected';
  /** CPU time that this process took for the task. */
  cpuMs: number;
}

/** The task cannot be carried out; the process ends. */
export interface FleetFailure {
  kind: 'failed';
  sentence: string;
}

let devices: FleetDevices;

function workOf(task: FleetTask): FleetDone | Promise<FleetDone> {
  if (task.kind === 'connect') devices = new FleetDevices(task.order);
  if (task.kind === 'tell') return devices.idle();
  return task.kind === 'storm' ? devices.storm() : devices.connect();
}

async function carryOut(task: FleetTask): Promise<void> {
  const cpuBefore = process.cpuUsage();
  const done = await workOf(task);
  const { user, system } = process.cpuUsage(cpuBefore);
  process.send!({ kind: 'connected', ...done, cpuMs: (user + system) / 1000 } satisfies FleetNote);
}

process.on('message', (task: FleetTask) => {
  carryOut(task).catch(({ message }: Error) => {
    process.send!({ kind: 'failed', sentence: message } satisfies FleetFailure, () => process.exit(1));
  });
});
process.on('disconnect', () => process.exit(0));
