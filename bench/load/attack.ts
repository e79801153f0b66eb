/**
 * Runs an attacker beside a victim, and a neighbour that burns as much CPU: `attack-process.ts` in separate processes.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { AttackOrder, AttackResult, Order } from './attack-process.ts';

const entry = fileURLToPath(new URL('./attack-process.js', import.meta.url));

export interface Running {
  /** Ends the attacker and returns its result. */
  stop(): Promise<AttackResult>;
}

export function startAttack(order: AttackOrder): Running {
  const child = start(order);
  return { stop: () => stop(child) };
}

/** Burns the CPU of `cores` cores, more than one in several processes. */
export function startBurner(cores: number): Running {
  const count = Math.max(1, Math.ceil(cores));
  const children = Array.from({ length: count }, () => start({ cores: cores / count }));
  return {
    async stop() {
      const results = await Promise.all(children.map(stop));
      return { statuses: {}, cpuMs: results.reduce((sum, { cpuMs }) => sum + cpuMs, 0) };
    },
  };
}

function start(order: Order): ChildProcess {
  const child = fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.send(order);
  return child;
}

async function stop(child: ChildProcess): Promise<AttackResult> {
  const answered = once(child, 'message') as Promise<[AttackResult]>;
  const ended = once(child, 'exit').then(() => {
    throw new Error('a process of the attack ended by itself');
  });
  if (child.connected) child.send('stop');
  const [result] = await Promise.race([answered, ended]);
  ended.catch(() => {});
  return result;
}
