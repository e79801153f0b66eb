/** Reads the settings of Redis: one server, servers that Sentinels watch, or a cluster. */
import { readFileSync } from 'node:fs';
import { messageOf, StartError } from '../base/errors.ts';

export interface RedisSettings {
  url: string;
  /** Path of the certificates, in PEM, that may sign that of the server; '' = those of the system. */
  tlsCa?: string;
  /** The login at the Sentinels; '' = none. The login at the server is part of the URL. */
  sentinelUser?: string;
  sentinelPassword?: string;
}

interface Node {
  host: string;
  port: number;
}

interface Login {
  username?: string;
  password?: string;
  tls?: { ca?: Buffer };
}

export interface ClusterAddress {
  nodes: Node[];
  /** The login at every node. */
  login: Login;
}

/** Options of ioredis: a server, or the Sentinels that know the server of this name. */
export interface ServerAddress extends Login {
  host?: string;
  port?: number;
  db?: number;
  sentinels?: Node[];
  name?: string;
  sentinelUsername?: string;
  sentinelPassword?: string;
  enableTLSForSentinelMode?: boolean;
  sentinelTLS?: { ca?: Buffer };
  failoverDetector?: boolean;
}

/** `server`: one server at a time, which Sentinels may replace. */
type RedisAddress = { server: ServerAddress } | { cluster: ClusterAddress };

const serverPort = 6379;
const sentinelPort = 26_379;
const form = /^redis(s?)(\+cluster|\+sentinel)?:\/\/(?:([^@/]*)@)?([^/?@]+)(?:\/([^?]*))?(?:\?.*)?$/;

/** Throws a StartError, which leaves out the URL, because it may hold a password. */
export function readRedisAddress(settings: RedisSettings): RedisAddress {
  const [, secure, mode, given = '', hosts, path = ''] = form.exec(settings.url) ?? [];
  if (hosts === undefined) throw malformed();
  const tls = secure ? tlsOf(settings.tlsCa ?? '') : undefined;
  const login: Login = { ...credentialsOf(given), ...(tls && { tls }) };
  if (mode === '+sentinel') return { server: sentinelOptions(settings, nodesOf(hosts, sentinelPort), path, login) };
  if (mode === '+cluster' || hosts.includes(',')) {
    if (path !== '') throw malformed();
    return { cluster: { nodes: nodesOf(hosts, serverPort), login } };
  }
  if (!/^\d*$/.test(path)) throw malformed();
  return { server: { ...nodesOf(hosts, serverPort)[0]!, ...login, ...(path && { db: Number(path) }) } };
}

function sentinelOptions(settings: RedisSettings, sentinels: Node[], name: string, login: Login): ServerAddress {
  if (name === '') throw malformed();
  const { sentinelUser, sentinelPassword } = settings;
  return {
    ...login,
    sentinels,
    name: decoded(name),
    ...(sentinelUser && { sentinelUsername: sentinelUser }),
    ...(sentinelPassword && { sentinelPassword }),
    ...(login.tls && { enableTLSForSentinelMode: true, sentinelTLS: login.tls }),
    // A master that was replaced still accepts messages, which no other client receives: its connections are ended.
    failoverDetector: true,
  };
}

function credentialsOf(given: string): Login {
  // The first colon ends the user, as in any URL.
  const at = given.indexOf(':');
  const [user, password] = at < 0 ? [given, ''] : [given.slice(0, at), given.slice(at + 1)];
  return {
    ...(user && { username: decoded(user) }),
    ...(password && { password: decoded(password) }),
  };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw malformed();
  }
}

function nodesOf(hosts: string, defaultPort: number): Node[] {
  return hosts.split(',').map((text) => {
    const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?$/.exec(text.trim()) ?? [];
    const host = bracketed ?? plain;
    if (!host || Number(port ?? defaultPort) > 65_535) throw malformed();
    return { host, port: Number(port ?? defaultPort) };
  });
}

function tlsOf(path: string): { ca?: Buffer } {
  if (path === '') return {};
  try {
    return { ca: readFileSync(path) };
  } catch (error) {
    throw new StartError(`Setting redis.tlsCa (REDIS_TLS_CA) cannot be read: ${messageOf(error)}.`);
  }
}

function malformed(): StartError {
  return new StartError(
    'Setting redis.url (REDIS_URL) must look like redis://host:6379, rediss://host:6379 with TLS, ' +
      'redis+sentinel://host:26379,host:26379/name or redis+cluster://host:6379,host:6379. ' +
      'Write a % in a user or a password as %25.',
  );
}
