/**
 * A caller that takes as much as it can get, in a separate process and from a separate address, until it is stopped;
 * or, for comparison, a process that only burns CPU. Started by `attack.ts`.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { AnswerReader } from './http/answer-reader.ts';

/**
 * `answers`: each connection sends its next request when it has the answer. `unread`: it sends one and reads nothing.
 * `held`: it sends one that never ends.
 */
export interface AttackOrder {
  port: number;
  localAddress: string;
  connections: number;
  mode: 'answers' | 'unread' | 'held';
  /** In base64; connection n begins with the nth one. */
  requests: string[];
}

/** `cores`: the CPU that is to be burnt, at most 1. */
export type Order = AttackOrder | { cores: number };

export interface AttackResult {
  /** Answers by status; 0 = connections that broke. */
  statuses: Record<number, number>;
  cpuMs: number;
}

const reconnectMs = 100;
const burnPeriodMs = 20;

const statuses: Record<number, number> = {};
let ending = false;

function count(status: number): void {
  statuses[status] = (statuses[status] ?? 0) + 1;
}

async function attack(order: AttackOrder, first: number): Promise<void> {
  for (let n = first; !ending; n += 1) {
    const socket = connect({ port: order.port, host: '127.0.0.1', localAddress: order.localAddress });
    await (order.mode === 'answers' ? repeat(socket, order, n) : send(socket, order, n));
    if (ending) return;
    count(0);
    await sleep(reconnectMs);
  }
}

/** Resolves when the connection breaks. */
function repeat(socket: Socket, { requests }: AttackOrder, first: number): Promise<void> {
  return new Promise((resolve) => {
    const reader = new AnswerReader();
    let n = first;
    const next = () => {
      socket.write(Buffer.from(requests[n % requests.length]!, 'base64'));
      n += 1;
    };
    socket.on('connect', next);
    socket.on('data', (bytes) => {
      const status = reader.read(bytes, bytes.length);
      if (status === 0) return;
      count(status);
      if (ending) socket.destroy();
      else next();
    });
    socket.on('error', () => {});
    socket.on('close', () => resolve());
  });
}

function send(socket: Socket, { requests, mode }: AttackOrder, n: number): Promise<void> {
  return new Promise((resolve) => {
    socket.on('connect', () => {
      if (mode === 'unread') socket.pause();
      socket.write(Buffer.from(requests[n % requests.length]!, 'base64'));
    });
    if (mode === 'held') socket.on('data', (bytes) => count(Number(bytes.toString('latin1', 9, 12))));
    socket.on('error', () => {});
    socket.on('close', () => resolve());
  });
}

async function burn(cores: number): Promise<void> {
  while (!ending) {
    const until = performance.now() + burnPeriodMs * cores;
    while (performance.now() < until);
    await sleep(burnPeriodMs * (1 - cores));
  }
}

process.on('message', (message: Order | 'stop') => {
  if (message === 'stop') {
    ending = true;
    const { user, system } = process.cpuUsage();
    process.send!({ statuses, cpuMs: (user + system) / 1000 } satisfies AttackResult, () => process.exit(0));
  } else if ('cores' in message) void burn(message.cores);
  else for (let n = 0; n < message.connections; n += 1) void attack(message, n);
});
process.on('disconnect', () => process.exit(0));
