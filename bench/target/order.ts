/**
 * What `--target` asks for: the flags of the command line as one order, and its plan in words. A wrong flag is a
 * UsageError that says what to write.
 */
import { readFileSync } from 'node:fs';
import { parseWithUnit } from '../../src/base/settings/units.ts';
import { callerPath } from '../caller-path.ts';
import { recordPoints, recordPointsMax } from '../load/moving-record.ts';
import type { Level, Qos } from '../load/mqtt/mqtt-packets.ts';
import type { TlsOrder } from '../load/open-socket.ts';
import { figure } from '../report.ts';
import { UsageError } from '../settings.ts';

export const targetKinds = ['http', 'mqtt', 'gateway'] as const;
export type TargetKind = (typeof targetKinds)[number];

interface Flag {
  /** The name of the value in the help; '' = the flag has no value. */
  value: string;
  about: string;
  kinds?: readonly TargetKind[];
}

const mqttKinds = ['mqtt', 'gateway'] as const;

export const targetFlags = {
  target: { value: 'URL', about: 'the server: http://host:8080, for MQTT mqtt://host:1883; https and mqtts for TLS' },
  rest: { value: 'URL', about: 'its REST interface; over MQTT --user needs it, over HTTP it is --target' },
  user: { value: 'EMAIL', about: 'an administrator of a tenant: creates the devices, reads back, removes' },
  password: { value: 'TEXT', about: 'of --user; without it, the variable BENCH_PASSWORD' },
  'api-key': {
    value: 'KEY',
    about: 'in place of --user and --password; without any of them, the variable BENCH_API_KEY',
  },
  ca: { value: 'FILE', about: 'certificates in PEM that are trusted in place of those of Node' },
  insecure: { value: '', about: 'any certificate is accepted' },
  token: { value: 'TEXT', about: 'access tokens of devices that exist, with commas; instead of --user' },
  tokens: { value: 'FILE', about: 'the same, one on each line' },
  devices: { value: 'N', about: 'devices, or gateways, to create (100; gateways 4)' },
  children: { value: 'N', about: 'devices of each gateway, all in each message (100)', kinds: ['gateway'] },
  connections: {
    value: 'N',
    about: 'keep-alive connections, at most one for each device (64); over MQTT each device has one',
    kinds: ['http'],
  },
  window: { value: 'N', about: 'messages in flight on each connection (16)', kinds: mqttKinds },
  qos: { value: '0|1', about: 'quality of service (1)', kinds: mqttKinds },
  protocol: { value: '4|5', about: 'MQTT 3.1.1 or 5 (4)', kinds: mqttKinds },
  payload: { value: 'N', about: `data points of each record, ${recordPoints} to ${recordPointsMax} (${recordPoints})` },
  rate: { value: 'N|max', about: 'messages/s in all (1000); max = as fast as answers come' },
  ramp: { value: 'TIME', about: 'the rate grows from 0 in this time (0s)' },
  warmup: { value: 'TIME', about: 'time before measuring (5s)' },
  duration: { value: 'TIME', about: 'measured time (30s)' },
  repeat: { value: 'N', about: 'measure so many times, and print the spread (1)' },
  'p99-max': { value: 'TIME', about: 'fail when the p99 of a measurement is above this' },
  'find-rate': { value: '', about: 'search the highest rate whose p99 is at most --p99-max' },
  'give-up': { value: 'TIME', about: 'end when nothing was acknowledged for so long (20s)' },
  processes: { value: 'N', about: 'generator processes, at most one for each device (1)' },
  keep: { value: '', about: 'do not remove the devices at the end' },
  remove: { value: 'NAME', about: 'remove the devices that an earlier run has left, whose names begin so, and end' },
  'dry-run': { value: '', about: 'print the plan and end' },
} as const satisfies Record<string, Flag>;

export type TargetFlag = keyof typeof targetFlags;
export type FlagValues = Partial<Record<TargetFlag, string | boolean>>;

interface Server {
  host: string;
  port: number;
  /** As the address has it, with brackets and without a usual port. */
  authority: string;
  isTls: boolean;
}

export interface TargetOrder {
  kind: TargetKind;
  server: Server;
  /** Base URL without a slash at its end; '' = there is no sign-in. */
  rest: string;
  user: string;
  password: string;
  apiKey: string;
  /** Present when the target or its REST interface is reached over TLS. */
  tls: TlsOrder | undefined;
  /** Tokens of devices that exist; empty = devices are created. */
  tokens: string[];
  devices: number;
  children: number;
  connections: number;
  window: number;
  qos: Qos;
  level: Level;
  points: number;
  /** 0 = as fast as answers come. */
  rate: number;
  rampSeconds: number;
  warmupSeconds: number;
  seconds: number;
  repeat: number;
  /** 0 = no bound. */
  p99MsMax: number;
  isSearch: boolean;
  giveUpSeconds: number;
  processes: number;
  keep: boolean;
  /** Not '': nothing is measured, only the devices of an earlier run are removed, whose names begin so. */
  remove: string;
  isDryRun: boolean;
}

const ports: Record<string, number> = { 'http:': 80, 'https:': 443, 'mqtt:': 1883, 'mqtts:': 8883 };
const exampleAddresses = {
  http: 'http://localhost:8080 or https://localhost:8443',
  mqtt: 'mqtt://localhost:1883 or mqtts://localhost:8883',
};
const defaultRate = 1_000;
/** The names of all devices of a run begin so: devices of others are never removed. */
const ownPrefix = /^bench-[0-9a-f]{6}-$/;

export function targetOrder(kind: TargetKind, flags: FlagValues): TargetOrder {
  for (const name of Object.keys(flags) as TargetFlag[]) {
    const flag: Flag | undefined = targetFlags[name];
    if (flag === undefined)
      throw new UsageError(`With --target there is no --${name}: \`npm run bench -- ${kind} --help\` names the flags.`);
    const { kinds = targetKinds } = flag;
    if (!kinds.includes(kind)) throw new UsageError(`--${name} is a flag of ${kinds.join(' and ')}, not of ${kind}.`);
  }
  const text = (name: TargetFlag, otherwise = '') => String(flags[name] ?? otherwise);
  const url = urlOf('target', text('target'), kind);
  const tokens = tokensOf(text('token'), text('tokens'));
  const source = flags.tokens === undefined ? '--token' : `--tokens: ${text('tokens')}`;
  if ((flags.token ?? flags.tokens) !== undefined && tokens.length === 0)
    throw new UsageError(`${source} has no token.`);
  const user = text('user');
  const isAnonymous = user === '' && tokens.length === 0;
  const apiKey = text('api-key', isAnonymous ? (process.env['BENCH_API_KEY'] ?? '') : '');
  const signsIn = user !== '' || apiKey !== '';
  if (tokens.length > 0 && signsIn)
    throw new UsageError(`Give ${user === '' ? '--api-key' : '--user'} to create devices, or tokens, not both.`);
  if (user !== '' && apiKey !== '') throw new UsageError('Give --user and --password, or --api-key, not both.');
  if (tokens.length === 0 && !signsIn)
    throw new UsageError(
      'Give --user (and --password) or --api-key to create devices, or --token with those of existing devices.',
    );
  if (tokens.length > 0 && flags.devices !== undefined)
    throw new UsageError(
      '--devices creates devices, which goes with --user or --api-key: each token is a device that exists.',
    );
  const devices = tokens.length || wholeOf('devices', text('devices', kind === 'gateway' ? '4' : '100'), 1);
  for (const name of ['connections', 'processes'] as const)
    if (flags[name] !== undefined && Number(text(name)) > devices)
      throw new UsageError(`--${name} ${text(name)} needs as many devices, of which there are ${devices}.`);
  const rate = text('rate', String(defaultRate));
  const p99MsMax = flags['p99-max'] === undefined ? 0 : secondsOf('p99-max', text('p99-max')) * 1000;
  const isSearch = flags['find-rate'] === true;
  if (flags['p99-max'] !== undefined && p99MsMax === 0) throw new UsageError('--p99-max must be more than 0.');
  if (isSearch && p99MsMax === 0) throw new UsageError('--find-rate needs its bound, for instance --p99-max 25ms.');
  if (isSearch && flags.repeat !== undefined)
    throw new UsageError('--repeat has no effect with --find-rate, which measures each rate once.');
  if (isSearch && rate === 'max') throw new UsageError('--find-rate begins at a rate: give a number as --rate.');
  const rest = signsIn ? restOf(url, text('rest')) : '';
  const order: TargetOrder = {
    kind,
    server: {
      host: url.hostname.replace(/^\[|\]$/g, ''),
      port: Number(url.port) || ports[url.protocol]!,
      authority: url.host,
      isTls: isTls(url),
    },
    rest,
    user,
    password: user === '' ? '' : text('password', process.env['BENCH_PASSWORD'] ?? ''),
    apiKey,
    tls: tlsOf(flags, isTls(url) || rest.startsWith('https:')),
    tokens,
    devices,
    children: kind === 'gateway' ? wholeOf('children', text('children', '100'), 1) : 0,
    connections: kind === 'http' ? Math.min(devices, wholeOf('connections', text('connections', '64'), 1)) : devices,
    window: wholeOf('window', text('window', '16'), 1),
    qos: oneOf('qos', text('qos', '1'), [0, 1]),
    level: oneOf('protocol', text('protocol', '4'), [4, 5]),
    points: wholeOf('payload', text('payload', String(recordPoints)), recordPoints, recordPointsMax),
    rate: rate === 'max' ? 0 : wholeOf('rate', rate, 1),
    rampSeconds: secondsOf('ramp', text('ramp', '0s')),
    warmupSeconds: secondsOf('warmup', text('warmup', '5s')),
    seconds: secondsOf('duration', text('duration', '30s')),
    repeat: wholeOf('repeat', text('repeat', '1'), 1),
    p99MsMax,
    isSearch,
    giveUpSeconds: secondsOf('give-up', text('give-up', '20s')),
    processes: Math.min(devices, wholeOf('processes', text('processes', '1'), 1)),
    keep: flags.keep === true,
    remove: text('remove'),
    isDryRun: flags['dry-run'] === true,
  };
  if (order.user !== '' && order.password === '') throw new UsageError('Give --password, or set BENCH_PASSWORD.');
  if (order.giveUpSeconds < 1) throw new UsageError('--give-up must be at least 1s.');
  if (order.seconds === 0) throw new UsageError('--duration must be more than 0.');
  if (flags.remove !== undefined && !ownPrefix.test(order.remove))
    throw new UsageError(
      `--remove must be a name that a run has printed, such as bench-1a2b3c-, not "${order.remove}".`,
    );
  if (order.remove !== '' && !signsIn) throw new UsageError('--remove needs --user or --api-key.');
  if (order.rampSeconds > 0 && order.rate === 0) throw new UsageError('--ramp needs a --rate to grow to.');
  return order;
}

/** The command that removes devices which a run has left; the secrets are left to the variables of the environment. */
export function removalCommand(order: TargetOrder, prefix: string): string {
  const { kind, rest, user, apiKey, tls } = order;
  const address = addressOf(order);
  const words = [`npm run bench -- ${kind} --target ${address}`];
  if (rest !== address) words.push(`--rest ${rest}`);
  words.push(apiKey === '' ? `--user ${user}` : '--api-key …');
  if (tls?.isInsecure) words.push('--insecure');
  else if (tls !== undefined && tls.ca !== '') words.push('--ca …');
  return [...words, `--remove ${prefix}`].join(' ');
}

/** The address of a target as a URL. */
export function addressOf({ kind, server: { authority, isTls } }: Pick<TargetOrder, 'kind' | 'server'>): string {
  return `${kind === 'http' ? 'http' : 'mqtt'}${isTls ? 's' : ''}://${authority}`;
}

/** The plan in lines of two columns. */
export function planOf(order: TargetOrder): [string, string][] {
  const { kind, server, tokens, children, connections, points, rate, window } = order;
  const { rampSeconds, warmupSeconds, seconds, repeat, p99MsMax, isSearch, processes, qos, level } = order;
  const address = `${server.host}:${server.port}`;
  const secured = server.isTls ? ` with TLS${order.tls?.isInsecure ? ', any certificate' : ''}` : '';
  const mqtt = `MQTT ${level === 4 ? '3.1.1' : '5'}${secured}, QoS ${qos}, ${window} messages in flight`;
  const protocol = kind === 'http' ? `HTTP${secured}` : mqtt;
  const records = kind === 'gateway' ? `${children} records` : '1 record';
  const pace = rate === 0 ? 'as fast as answers come' : `${figure(rate)} messages/s`;
  const times = [
    rampSeconds > 0 ? `ramp ${rampSeconds} s` : '',
    `warm-up ${warmupSeconds} s`,
    `measured ${seconds} s`,
    repeat > 1 && !isSearch ? `${repeat} times` : '',
  ];
  const search = `search from ${figure(rate)} messages/s on the highest rate with p99 at most ${figure(p99MsMax)} ms`;
  return [
    ['target', `${address}, telemetry over ${protocol}`],
    ['devices', devicesText(order)],
    [
      'load',
      `${isSearch ? search : pace}, ${connections} connection${connections > 1 ? 's' : ''}, ${processes} generator process${processes > 1 ? 'es' : ''}, ` +
        `${records} of ${points} points in each message`,
    ],
    ['times', times.filter((part) => part !== '').join(', ')],
    ['ends', `before its time when nothing was acknowledged for ${figure(order.giveUpSeconds)} s`],
    [
      'verified',
      tokens.length > 0
        ? 'no: reading back needs --user or --api-key'
        : 'every acknowledged record is counted over REST after the load',
    ],
    ['not seen', "the server's machine, its CPU, memory and disk; whether what it acknowledged survives a crash"],
  ];
}

function devicesText({ kind, rest, user, apiKey, tokens, devices, children, keep }: TargetOrder): string {
  const isGateway = kind === 'gateway';
  if (tokens.length > 0 && isGateway)
    return `${figure(devices)} gateways given by their tokens; their messages create ${figure(children)} devices of each, which stay`;
  if (tokens.length > 0) return `${figure(devices)} given by their tokens; nothing is created or removed`;
  const things = isGateway
    ? `${figure(devices)} gateways of ${figure(children)} devices`
    : `${figure(devices)} devices`;
  return `${things}, created by ${apiKey === '' ? user : 'the owner of the API key'} at ${rest}${keep ? ', and kept' : ', removed at the end'}`;
}

function urlOf(flag: string, text: string, kind: TargetKind): URL {
  const url = URL.parse(text);
  const scheme = kind === 'http' ? 'http' : 'mqtt';
  if (url && [`${scheme}:`, `${scheme}s:`].includes(url.protocol) && url.hostname !== '') {
    if (/^\/?$/.test(url.pathname)) return url;
    throw new UsageError(`--${flag} must be an address without a path, not "${text}".`);
  }
  throw new UsageError(`--${flag} of ${kind} must be an address such as ${exampleAddresses[scheme]}, not "${text}".`);
}

function isTls({ protocol }: URL): boolean {
  return protocol === 'https:' || protocol === 'mqtts:';
}

function tlsOf(flags: FlagValues, isNeeded: boolean): TlsOrder | undefined {
  const isInsecure = flags.insecure === true;
  const file = String(flags.ca ?? '');
  for (const [flag, isGiven] of [
    ['ca', file !== ''],
    ['insecure', isInsecure],
  ] as const)
    if (isGiven && !isNeeded) throw new UsageError(`--${flag} goes with an address that begins with https or mqtts.`);
  if (file !== '' && isInsecure) throw new UsageError('Give --ca or --insecure, not both.');
  if (!isNeeded) return undefined;
  const ca = file === '' ? '' : readOf('ca', file);
  if (file !== '' && !ca.includes('-----BEGIN CERTIFICATE-----'))
    throw new UsageError(`--ca: ${file} has no certificate in PEM.`);
  return { ca, isInsecure };
}

function restOf(target: URL, rest: string): string {
  const protocol = rest === '' ? '' : URL.parse(rest)?.protocol;
  if (protocol === 'http:' || protocol === 'https:') return rest.replace(/\/+$/, '');
  if (rest !== '') throw new UsageError(`--rest must be an address such as http://localhost:8080, not "${rest}".`);
  if (target.protocol.startsWith('http')) return `${target.protocol}//${target.host}`;
  throw new UsageError('Give --rest with the address of the REST interface, for instance http://localhost:8080.');
}

function tokensOf(list: string, file: string): string[] {
  return `${list},${file === '' ? '' : readOf('tokens', file)}`.split(/[\s,]+/).filter((token) => token !== '');
}

function readOf(flag: string, file: string): string {
  try {
    return readFileSync(callerPath(file), 'utf8');
  } catch (error) {
    throw new UsageError(`--${flag}: ${(error as Error).message}`);
  }
}

function wholeOf(flag: string, text: string, min: number, max = Number.MAX_SAFE_INTEGER): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= min && value <= max) return value;
  const range = max === Number.MAX_SAFE_INTEGER ? `from ${min} on` : `from ${min} to ${max}`;
  throw new UsageError(`--${flag} must be a whole number ${range}, not "${text}".`);
}

function oneOf<T extends number>(flag: string, text: string, allowed: T[]): T {
  const found = allowed.find((value) => String(value) === text);
  if (found === undefined) throw new UsageError(`--${flag} must be ${allowed.join(' or ')}, not "${text}".`);
  return found;
}

/** Reads a duration; a number without a unit is in seconds. */
export function secondsOf(flag: string, text: string): number {
  const ms = /^\d+(\.\d+)?$/.test(text) ? Number(text) * 1000 : parseWithUnit(text, 'milliseconds');
  if (Number.isNaN(ms)) throw new UsageError(`--${flag} must be a time such as 30s, 500ms or 2m, not "${text}".`);
  return ms / 1000;
}
