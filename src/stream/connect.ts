/** Opens a connection to one of the servers of the stream. */
import { readFileSync } from 'node:fs';
import { connect, credsAuthenticator, type NatsConnection, type NodeConnectionOptions } from '@nats-io/transport-node';
import { messageOf, StartError } from '../base/errors.ts';
import { listOfSetting } from '../base/settings/list-setting.ts';
import { destroyAbandonedSockets } from './abandoned-sockets.ts';
import { isCertificate, isLogin } from './connect-reason.ts';
import type { StreamSettings } from './stream-names.ts';

destroyAbandonedSockets();

/** A server that does not answer for about three of these intervals is left for another one. */
const pingIntervalMs = 1_000;
const pingsMax = 2;
const connectMsMax = 2_000;
export const reconnectMs = 250;

/**
 * Connects to one of the servers. Throws why none accepts the connection. Each server is tried alone first, because the
 * client asks a cluster that refuses it again and again, at once and without an end: it adds each server that it has
 * given up when another one names it.
 */
export async function connectTo(settings: StreamSettings, name: string): Promise<NatsConnection> {
  const options = streamConnection(settings, name);
  await tryServers(options);
  const giveUpAt = performance.now() + connectMsMax * (options.servers.length + 1);
  let isFirst = true;
  const connection = await connect({
    ...options,
    // The client asks for this delay before each try. An error ends its tries.
    reconnectDelayHandler: () => {
      if (isFirst && performance.now() > giveUpAt) throw new Error('no server accepts a connection');
      return reconnectMs + Math.random() * reconnectMs;
    },
  });
  isFirst = false;
  return connection;
}

/** Resolves when one of the servers accepts a connection. */
export async function tryServers(options: StreamConnectionOptions): Promise<void> {
  const tries = options.servers.map(async (server) => {
    const connection = await connect({ ...options, servers: [server], ignoreClusterUpdates: true });
    void connection.close().catch(() => {});
  });
  try {
    await Promise.any(tries);
  } catch (error) {
    const { errors } = error as AggregateError;
    // A server that is stopped says less than one that refuses.
    throw errors.find(isLogin) ?? errors.find(isCertificate) ?? errors[0];
  }
}

type StreamConnectionOptions = NodeConnectionOptions & { servers: string[] };

export function streamConnection(settings: StreamSettings, name: string): StreamConnectionOptions {
  const { url, user, password, creds, tlsCa } = settings;
  const servers = listOfSetting(url);
  const isTls = tlsCa !== '' || servers.some((server) => server.startsWith('tls://'));
  return {
    servers: servers.map((server) => server.replace(/^(nats|tls):\/\//, '')),
    name,
    timeout: connectMsMax,
    maxReconnectAttempts: -1,
    pingInterval: pingIntervalMs,
    maxPingOut: pingsMax,
    // A login may be repaired at the servers while Millrace runs.
    ignoreAuthErrorAbort: true,
    ...(user !== '' && { user, pass: password }),
    ...(creds !== '' && { authenticator: credsAuthenticator(credsOf(creds)) }),
    // The client reads the file at each connection.
    ...(isTls && { tls: tlsCa === '' ? {} : { caFile: readable(tlsCa, 'STREAM_TLS_CA') } }),
  };
}

/**
 * Returns the content of the file at each connection, because credentials expire and are replaced. While the file has
 * none, as in the middle of a write, the last ones count: the client would close its connection for good.
 */
function credsOf(path: string): () => Buffer {
  let last = fileOf(path, 'STREAM_CREDS');
  if (!hasCreds(last)) {
    throw new StartError(`STREAM_CREDS is ${path}, which has no credentials: name a file that "nsc" has made.`);
  }
  return () => {
    try {
      const read = readFileSync(path);
      if (hasCreds(read)) last = read;
    } catch {
      // The file may be there again at the next connection.
    }
    return last;
  };
}

function hasCreds(file: Buffer): boolean {
  return /-{3,}\s+\S+\s+-{3,}[\s\S]*-{3,}\s+\S+\s+-{3,}/.test(file.toString());
}

function readable(path: string, setting: string): string {
  fileOf(path, setting);
  return path;
}

function fileOf(path: string, setting: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new StartError(`${setting} is ${path}, which cannot be read: ${messageOf(error)}.`);
  }
}
