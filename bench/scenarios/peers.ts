/**
 * The same records to Millrace and to other servers, one server after the other, each with the whole machine: brokers
 * that store nothing, databases, and a platform that runs elsewhere (`--peer thingsboard=URL`). First one record in
 * each message, then a record of many devices. The table has what an acknowledgement promises, too.
 */
import { availableParallelism } from 'node:os';
import { startEngine } from '../../test/harness/engine.ts';
import type { CommandLine } from '../command-line.ts';
import {
  type Contender,
  engineContender,
  peerContender,
  storeContender,
  type Turn,
  targetContender,
} from '../contender.ts';
import { machineSettled } from '../cpu.ts';
import { benchTokens, createDevices, EngineUnderLoad, httpGenerator, type LoadOrder } from '../engine-under-load.ts';
import { runCopyLoad } from '../load/copy/copy.ts';
import { addedUp, refusedText } from '../load/counts.ts';
import { runHttpLoad } from '../load/http/http.ts';
import { recordPoints } from '../load/moving-record.ts';
import type { LoadResult } from '../load/processes.ts';
import { type Peer, startAedes, startBare, startMosquitto } from '../peers/start.ts';
import { postgresLogin, type StoreKind, type StorePeer, storeKinds } from '../peers/stores.ts';
import { packageVersion } from '../peers/versions.ts';
import { type Cell, figure, say, table, writeResult } from '../report.ts';
import { type BenchSettings, UsageError } from '../settings.ts';
import { targetOrder } from '../target/order.ts';
import { serverMachineText, serverName } from '../target/server.ts';
import { offer as offerGateways } from './gateway.ts';
import { offerBare } from './http.ts';
import { generatorOf, offer as offerMqtt } from './mqtt.ts';

const host = '127.0.0.1';

/** A server that is not started yet, and one form of its messages. */
interface Entry {
  door: string;
  /** Records in each message. */
  records: number;
  /** Messages/s at which p99 is measured. */
  rate: number;
  start(): Promise<Started>;
}

interface Started {
  contender: Contender;
  version: string;
  acknowledges: string;
}

interface Row extends Omit<Entry, 'start'> {
  name: string;
  version: string;
  acknowledges: string;
  peak: Turn;
  fixed: Turn;
  /** NaN = the server stores nothing, or its disk cannot be seen. */
  bytesPerPoint: number;
}

export async function runPeers(settings: BenchSettings, { peer, flags }: CommandLine): Promise<boolean> {
  const installed = storeKinds().filter(({ name, install }) => {
    if (install !== '') say(`${name} is not installed and left out: ${install}`);
    return install === '';
  });
  const entries = entriesOfOne(settings, installed);
  if (settings.peers.blocks > 0) entries.push(...entriesOfBlocks(settings, installed));
  if (peer !== '') entries.push(platformEntry(peer, flags, settings));
  const rows: Row[] = [];
  for (const entry of entries) rows.push(await measure(entry, settings.peers));
  say('');
  table(
    [
      '',
      'door',
      'records',
      'acknowledged/s',
      'points/s',
      'stored/s',
      'p99 ms',
      'at/s',
      'CPU us',
      'bytes/point',
      'means',
    ],
    rows.map(cellsOf),
  );
  say('');
  const versions = Object.fromEntries(rows.map(({ name, version }) => [name, version]));
  for (const [name, version] of Object.entries(versions)) say(`${name} ${version}`);
  for (const { name, peak, fixed } of rows) {
    for (const { load } of [peak, fixed]) if (load.invalid !== '') say(`INVALID ${name}: ${load.invalid}`);
    const refused = addedUp([peak.load.refused, fixed.load.refused]);
    if (Object.keys(refused).length > 0) say(`${name} refused with ${refusedText(refused)}`);
  }
  const wrong = rows.filter(({ peak, fixed }) => peak.verified === false || fixed.verified === false);
  say(
    `stored and read back: ${wrong.length === 0 ? 'every acknowledged record, once' : `NOT by ${wrong.map(({ name }) => name).join()}`}`,
  );
  writeResult('peers', settings, { versions, rows });
  return wrong.length === 0;
}

async function measure({ start, ...entry }: Entry, settings: BenchSettings['peers']): Promise<Row> {
  const { warmupSeconds, seconds, latencySeconds, settleSeconds } = settings;
  const { contender, version, acknowledges } = await start();
  const { name } = contender;
  try {
    const peak = await contender.run({ rate: 0, seconds, warmupSeconds });
    await machineSettled(settleSeconds * 1000);
    const fixed = await contender.run({ rate: entry.rate, seconds: latencySeconds, warmupSeconds });
    const bytesPerPoint = (await contender.bytesPerPoint?.()) ?? Number.NaN;
    say(`${name}, ${entry.door}, records ${entry.records}: ${figure(peak.load.requestsPerSecond)} messages/s`);
    return { ...entry, name, version, acknowledges, peak, fixed, bytesPerPoint };
  } finally {
    await contender.close();
    await machineSettled(settleSeconds * 1000);
  }
}

/**
 * Millrace answers before ClickHouse has the records, so it gets a second rate: that until ClickHouse has all of them.
 */
function cellsOf({ name, door, records, rate, acknowledges, peak, fixed, bytesPerPoint }: Row): Cell[] {
  const { messagesPerSecond, cpuMicroseconds = {} } = peak;
  const { requestsPerSecond } = peak.load;
  const cpu = Object.values(cpuMicroseconds);
  return [
    name,
    door,
    records,
    requestsPerSecond,
    requestsPerSecond * records * recordPoints,
    messagesPerSecond === requestsPerSecond ? Number.NaN : messagesPerSecond,
    fixed.load.latency.p99Ms,
    rate,
    cpu.length === 0 ? Number.NaN : cpu.reduce((sum, us) => sum + us, 0),
    bytesPerPoint,
    acknowledges,
  ];
}

const journalled = 'in the journal, synced';
const nothing = 'received; stored nowhere';

function entriesOfOne(settings: BenchSettings, stores: StoreKind[]): Entry[] {
  const { http, mqtt } = settings;
  const { sessions, rate } = settings.peers;
  const workers = settings.peers.workers || availableParallelism();
  const entry = (door: string, start: Entry['start']): Entry => ({ door, records: 1, rate, start });
  const mqttTokens = benchTokens(mqtt.connections);
  const broker = (start: () => Promise<Peer>) => {
    return entry('MQTT', () =>
      startPeer(start, (port, order) => offerMqtt(port, mqttTokens, settings, mqtt.window, order)),
    );
  };
  const size = { devices: http.devices, messageDevices: 1, sockets: http.sockets, sessions };
  const storeless = [
    entry('HTTP', () => startPeer(startBare, (port, order) => offerBare(port, http, order))),
    broker(startMosquitto),
    broker(startAedes),
  ];
  return [
    ...(settings.peers.brokers === 0 ? [] : storeless),
    ...stores.map((kind) => entry(doorOf(kind), () => startStore(kind, size))),
    entry('HTTP', () => startMillrace(EngineUnderLoad.start(workers, http.devices, httpGenerator(http)))),
    entry('MQTT', () =>
      startMillrace(EngineUnderLoad.start(workers, mqtt.connections, generatorOf(settings, mqtt.window))),
    ),
  ];
}

function entriesOfBlocks(settings: BenchSettings, stores: StoreKind[]): Entry[] {
  const { blocks, blockDevices, blockRate: rate } = settings.peers;
  const workers = settings.peers.workers || availableParallelism();
  const entry = (door: string, start: Entry['start']): Entry => ({ door, records: blockDevices, rate, start });
  const size = { devices: blocks * blockDevices, messageDevices: blockDevices, sockets: blocks, sessions: blocks };
  const gateways = { ...settings.gateway, gateways: blocks, children: blockDevices, window: 1 };
  const startGateways = async (): Promise<EngineUnderLoad> => {
    const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
    const tokens = await createDevices(engine.api, blocks, { additionalInfo: { gateway: true } });
    const under = new EngineUnderLoad(
      engine,
      tokens,
      (_, known, order) => offerGateways(engine.mqttPort, known, gateways, 5, order),
      blockDevices,
    );
    // The first messages create the devices.
    await under.load(blocks, 2, 0);
    return under;
  };
  return [
    ...stores.map((kind) => entry(doorOf(kind), () => startStore(kind, size))),
    entry('gateway', () => startMillrace(startGateways())),
  ];
}

function doorOf({ name }: StoreKind): string {
  return name === 'PostgreSQL' ? 'COPY' : 'lines';
}

async function startPeer(
  start: () => Promise<Peer>,
  offer: (port: number, order: LoadOrder) => Promise<LoadResult>,
): Promise<Started> {
  const peer = await start();
  const contender = peerContender(peer, (order) => offer(peer.port, order));
  return { contender, version: peer.version, acknowledges: nothing };
}

interface StoreSize {
  devices: number;
  messageDevices: number;
  sockets: number;
  sessions: number;
}

async function startStore(
  kind: StoreKind,
  { devices, messageDevices, sockets, sessions }: StoreSize,
): Promise<Started> {
  const store: StorePeer = await kind.start();
  const tokens = benchTokens(devices);
  const form = { host, port: store.port, tokens, messageDevices };
  const offer = (order: LoadOrder) => {
    if (kind.name === 'PostgreSQL') return runCopyLoad({ ...form, ...postgresLogin, sessions, ...order });
    return runHttpLoad({ ...form, kind: 'lines', sockets, processes: 1, ...order });
  };
  const senders = devices / messageDevices;
  const contender = storeContender(store, { senders, messageRecords: messageDevices }, offer);
  return { contender, version: store.version, acknowledges: store.acknowledges };
}

async function startMillrace(starting: Promise<EngineUnderLoad>): Promise<Started> {
  const contender = engineContender('Millrace', await starting);
  const version = `of this checkout, ClickHouse of chdb ${packageVersion('chdb')}`;
  return { contender, version, acknowledges: journalled };
}

/** `words`: a name and an address, as in `thingsboard=http://host:8080`. */
function platformEntry(words: string, signIn: CommandLine['flags'], settings: BenchSettings): Entry {
  const [, name, target] = /^([\w-]+)=(https?:.+)$/.exec(words) ?? [];
  if (name === undefined || target === undefined)
    throw new UsageError('--peer is a name and an address, as in thingsboard=http://host:8080.');
  const { devices, sockets } = settings.http;
  const flags = {
    ...signIn,
    target,
    devices: String(devices),
    connections: String(Math.min(sockets, devices)),
    rate: 'max',
  };
  // Wrong flags are refused before the first server starts.
  targetOrder('http', flags);
  return {
    door: 'HTTP',
    records: 1,
    rate: settings.peers.rate,
    start: async () => {
      const { contender, server } = await targetContender(name, flags);
      const version = `${serverName(server)}, its machine: ${serverMachineText(server)}`;
      return { contender, version, acknowledges: 'as that server is set up' };
    },
  };
}
