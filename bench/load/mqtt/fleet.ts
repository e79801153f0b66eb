/** A fleet of idle MQTT connections, spread over processes and loopback addresses. */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { openFilesMax } from '../../../src/base/file-limit.ts';
import { addedUp } from '../counts.ts';
import type { FleetOrder } from './fleet-devices.ts';
import type { FleetFailure, FleetNote, FleetTask } from './fleet-process.ts';

const entry = fileURLToPath(new URL('./fleet-process.js', import.meta.url));
const socketsPerAddress = 8_000;
const fileReserve = 64;

export interface FleetConnected {
  connections: number;
  startedAtMs: number;
  endedAtMs: number;
  connectsPerSecond: number;
  failed: Record<string, number>;
  lost: number;
  /** CPU time of the processes of the fleet. */
  cpuMs: number;
  /** Share of one core that the busiest process of the fleet used. */
  busiestShare: number;
  /** Milliseconds after which half, nine tenths and 99 of 100 devices were connected. */
  connectedAfterMs: { half: number; nineTenths: number; almostAll: number };
}

export class Fleet {
  static #fleets = 0;
  readonly #children: ChildProcess[];
  readonly #sizes: number[];

  private constructor(children: ChildProcess[], sizes: number[]) {
    this.#children = children;
    this.#sizes = sizes;
  }

  /** Resolves when every device is connected. */
  static async open(host: string, port: number, tokens: string[], processes: number) {
    const parts = Array.from({ length: processes }, (_, n) => tokens.filter((__, device) => device % processes === n));
    const largest = Math.max(...parts.map(({ length }) => length));
    if (largest > openFilesMax() - fileReserve) {
      throw new Error(
        `${largest} sockets in one process, and ulimit -n is ${openFilesMax()}: more processes are needed`,
      );
    }
    const children = parts.map(() => fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }));
    const fleet = new Fleet(
      children,
      parts.map(({ length }) => length),
    );
    Fleet.#fleets += 1;
    const connected = await fleet.#ask((n) => {
      const addresses = Math.ceil(parts[n]!.length / socketsPerAddress);
      const localAddresses = Array.from({ length: addresses }, (_, i) => `127.${Fleet.#fleets}.${n + 1}.${i + 1}`);
      const order: FleetOrder = { host, port, tokens: parts[n]!, localAddresses, socketsPerAddress };
      return { kind: 'connect', order };
    });
    return { fleet, connected };
  }

  /** Cuts off all devices, which then reconnect. */
  storm(): Promise<FleetConnected> {
    return this.#ask(() => ({ kind: 'storm' }));
  }

  /** Returns how many connections have ended without a request so far. */
  async lost(): Promise<number> {
    return (await this.#ask(() => ({ kind: 'tell' }))).lost;
  }

  close(): void {
    for (const child of this.#children) child.kill('SIGKILL');
  }

  async #ask(taskOf: (n: number) => FleetTask): Promise<FleetConnected> {
    const notes = await Promise.all(this.#children.map((child, n) => answerOf(child, taskOf(n))));
    const connections = this.#sizes.reduce((sum, size) => sum + size, 0);
    const startedAtMs = Math.min(...notes.map((note) => note.startedAtMs));
    const endedAtMs = Math.max(...notes.map((note) => note.endedAtMs));
    const failed = addedUp(notes.map((note) => note.failed));
    const lost = notes.reduce((sum, note) => sum + note.lost, 0);
    const cpuMs = notes.reduce((sum, note) => sum + note.cpuMs, 0);
    const busiestShare = Math.max(...notes.map((note) => note.cpuMs / (note.endedAtMs - note.startedAtMs)));
    const connectsPerSecond = (connections / (endedAtMs - startedAtMs)) * 1000;
    const times = notes.flatMap((note) => note.connectedAfterMs.map((ms) => note.startedAtMs - startedAtMs + ms));
    times.sort((a, b) => a - b);
    const at = (share: number) => times[Math.floor(share * (times.length - 1))] ?? 0;
    const connectedAfterMs = { half: at(0.5), nineTenths: at(0.9), almostAll: at(0.99) };
    const sums = { failed, lost, cpuMs, busiestShare, connectedAfterMs };
    return { connections, startedAtMs, endedAtMs, connectsPerSecond, ...sums };
  }
}

function answerOf(child: ChildProcess, task: FleetTask): Promise<FleetNote> {
  return new Promise((resolve, reject) => {
    const ended = (code: number | null) => reject(new Error(`a process of the fleet ended with ${code}`));
    child.once('exit', ended);
    child.once('message', (note: FleetNote | FleetFailure) => {
      child.removeListener('exit', ended);
      if (note.kind === 'failed') reject(new Error(`the fleet: ${note.sentence}`));
      else resolve(note);
    });
    child.send(task);
  });
}
