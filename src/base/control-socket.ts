/**
 * Carries an operator's commands to a running instance: one request and one answer, each a line of JSON, over a Unix
 * socket that only its owner can open. The primary listens (`listenControl`); `npm run backup` and other commands
 * connect (`openControl`). The resources of a command are released when its connection ends.
 */
import { chmodSync, closeSync, openSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { basename, dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { messageOf, StartError } from './errors.ts';

/** Returns a value that JSON can carry, or throws with a sentence for the operator. */
type ControlCommand = (argument: unknown, session: ControlSession) => Promise<unknown>;

interface ControlSession {
  /** Called once, when the connection of the caller has ended. */
  onClosed(callback: () => void): void;
}

interface Request {
  id: number;
  command: string;
  argument?: unknown;
}

type Answer = { id: number } & ({ answer: unknown } | { refused: string });

const connectionsMax = 8;
const requestCharsMax = 64 * 1024;
/** The longest path of a Unix socket, regardless of the file system. */
const pathBytesMax = 100;

export async function listenControl(
  path: string,
  commands: Record<string, ControlCommand>,
): Promise<{ close(): Promise<void> }> {
  // A killed run leaves its socket file; the caller owns the directory, so no process listens on this file.
  rmSync(path, { force: true });
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    serve(socket, commands);
  });
  server.maxConnections = connectionsMax;
  const address = reachable(path);
  try {
    await listening(server, address.path);
    chmodSync(path, 0o600);
  } finally {
    address.close();
  }
  return {
    close: async () => {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const socket of sockets) socket.destroy();
      await closed;
      rmSync(path, { force: true });
    },
  };
}

function serve(socket: Socket, commands: Record<string, ControlCommand>): void {
  const callbacks: (() => void)[] = [];
  let closed = false;
  const session: ControlSession = {
    onClosed: (callback) => {
      if (closed) callback();
      else callbacks.push(callback);
    },
  };
  socket.on('error', () => {});
  socket.on('close', () => {
    closed = true;
    for (const callback of callbacks.splice(0)) callback();
  });
  const answer = (value: Answer): void => {
    if (!socket.destroyed) socket.write(`${JSON.stringify(value)}\n`);
  };
  const received = (line: string): void => {
    const request = parseRequest(line);
    const command = request && Object.hasOwn(commands, request.command) ? commands[request.command] : undefined;
    if (!request || !command) {
      answer({ id: request?.id ?? 0, refused: `"${line.slice(0, 100)}" is no command of this instance` });
      return;
    }
    const { id, argument } = request;
    command(argument, session).then(
      (value) => answer({ id, answer: value ?? null }),
      (error: unknown) => answer({ id, refused: messageOf(error) }),
    );
  };
  let waiting = '';
  socket.setEncoding('utf8');
  socket.on('data', (text: string) => {
    waiting += text;
    for (let end = waiting.indexOf('\n'); end >= 0; end = waiting.indexOf('\n')) {
      received(waiting.slice(0, end));
      waiting = waiting.slice(end + 1);
    }
    if (waiting.length > requestCharsMax) socket.destroy();
  });
}

function parseRequest(line: string): Request | undefined {
  try {
    const { id, command, argument } = JSON.parse(line) as Partial<Request>;
    return typeof id === 'number' && typeof command === 'string' ? { id, command, argument } : undefined;
  } catch {
    return undefined;
  }
}

export interface ControlConnection {
  /** Rejects with the instance's own sentence, or when the connection or the time ends first. */
  ask<Value>(command: string, argument?: unknown, waitMsMax?: number): Promise<Value>;
  close(): void;
}

const waitMsDefault = 30_000;

/** Connects to the instance that runs on this data directory; throws a StartError when there is none. */
export async function openControl(path: string): Promise<ControlConnection> {
  const address = reachable(path);
  const socket = connect(address.path);
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('connect', resolve);
      socket.once('error', reject);
    });
  } catch (error) {
    throw new StartError(
      `No running instance answers at ${path} (${messageOf(error)}): start Millrace first, or set DATA_DIR.`,
    );
  } finally {
    address.close();
  }
  const waiting = new Map<number, (answer: Answer) => void>();
  let lastId = 0;
  let lost = false;
  socket.on('error', () => {});
  socket.on('close', () => {
    lost = true;
    for (const [id, settle] of waiting) settle({ id, refused: 'the instance ended the connection' });
  });
  createInterface({ input: socket })
    .on('line', (line) => {
      const answer = JSON.parse(line) as Answer;
      waiting.get(answer.id)?.(answer);
    })
    // The interface repeats the errors of its input.
    .on('error', () => {});
  return {
    ask: <Value>(command: string, argument?: unknown, waitMsMax = waitMsDefault) => {
      lastId += 1;
      const id = lastId;
      return new Promise<Value>((resolve, reject) => {
        const settle = (answer: Answer): void => {
          clearTimeout(timer);
          waiting.delete(id);
          if ('refused' in answer) reject(new StartError(`${command}: ${answer.refused}.`));
          else resolve(answer.answer as Value);
        };
        const timer = setTimeout(() => settle({ id, refused: `no answer after ${waitMsMax} ms` }), waitMsMax);
        if (lost) return settle({ id, refused: 'the instance ended the connection' });
        waiting.set(id, settle);
        socket.write(`${JSON.stringify({ id, command, argument } satisfies Request)}\n`);
      });
    },
    close: () => socket.destroy(),
  };
}

function listening(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, () => resolve());
  });
}

/** A long path is addressed through the descriptor of its directory. */
function reachable(path: string): { path: string; close(): void } {
  if (Buffer.byteLength(path) <= pathBytesMax) return { path, close: () => {} };
  const descriptor = openSync(dirname(path), 'r');
  return { path: `/proc/self/fd/${descriptor}/${basename(path)}`, close: () => closeSync(descriptor) };
}
