/**
 * Gateways over MQTT. First: gateways that send for all their devices in each message, beside Mosquitto and Aedes,
 * which acknowledge the same bytes and store nothing; data points count when they were found in ClickHouse. Then: one
 * gateway of a large site, with a message for each device every second, commands to random devices, and a lost
 * connection.
 */
import { Agent, request } from 'node:http';
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { cpuMsOf } from '../cpu.ts';
import { createDevices, EngineUnderLoad, type LoadOrder, type MeasuredLoad } from '../engine-under-load.ts';
import { refusedText, totalOf } from '../load/counts.ts';
import { Histogram, type LatencySummary, summaryOf } from '../load/histogram.ts';
import { recordPoints } from '../load/moving-record.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import type { Level } from '../load/mqtt/mqtt-packets.ts';
import { SiteGateway } from '../load/mqtt/site.ts';
import { type LoadResult, sayFailures } from '../load/processes.ts';
import { type Peer, startAedes, startMosquitto } from '../peers/start.ts';
import { figure, say, table, workersText, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

type GatewaySettings = BenchSettings['gateway'];

const pointsPerSecondMin = 2_000_000;
const commandP99MsMax = 20;
const commandsAfterReconnect = 100;
const attributesAfterReconnect = 20;
const commandsBefore = 400;
const operatorSockets = 16;
/** The engine answers a command that no device answers after ten seconds. */
const answerMsMax = 30_000;

export async function runGateway(settings: BenchSettings): Promise<boolean> {
  const workers = settings.gateway.workers || availableParallelism();
  const targets = new Targets();
  const many = await manyGateways(settings.gateway, workers, targets);
  const site = await oneSite(settings.gateway, workers, targets);
  const holds = targets.tell();
  writeResult('gateway', settings, { workers, many, site, missed: targets.missed });
  return many.isClean && site.isClean && holds;
}

async function manyGateways(settings: GatewaySettings, workers: number, targets: Targets) {
  const { gateways, children, seconds, warmupSeconds } = settings;
  const messagePoints = children * recordPoints;
  const peers = [await measurePeer(await startMosquitto(), settings), await measurePeer(await startAedes(), settings)];
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  let millrace: MeasuredLoad;
  try {
    const tokens = await createDevices(engine.api, gateways, { additionalInfo: { gateway: true } });
    const under = new EngineUnderLoad(
      engine,
      tokens,
      (_, known, order) => {
        return offer(engine.mqttPort, known, settings, 5, order);
      },
      children,
    );
    // The first messages create the devices.
    await under.load(gateways, 1, 0);
    millrace = await under.load(0, seconds, warmupSeconds);
  } finally {
    await engine.destroy();
  }
  const pointsPerSecond = millrace.storedRequestsPerSecond * messagePoints;
  const { workers: workersUs = 0, clickhouse = 0 } = millrace.cpuMicrosecondsPerRequest;
  const columns = ['messages/s', 'data points/s', 'drain s', 'p50 ms', 'p99 ms', 'CPU ns/point', 'ClickHouse ns'];
  table(
    [`${gateways} gateways, ${children} devices each`, ...columns, 'generator CPU'],
    [
      ...peers.map(({ name, load, cpuUs }) => [
        name,
        load.requestsPerSecond,
        load.requestsPerSecond * messagePoints,
        0,
        load.latency.p50Ms,
        load.latency.p99Ms,
        (cpuUs * 1000) / messagePoints,
        0,
        load.generatorCpuShare,
      ]),
      [
        `Millrace, ${workersText(workers)}`,
        millrace.storedRequestsPerSecond,
        pointsPerSecond,
        millrace.drainSeconds,
        millrace.latency.p50Ms,
        millrace.latency.p99Ms,
        (workersUs * 1000) / messagePoints,
        (clickhouse * 1000) / messagePoints,
        millrace.generatorCpuShare,
      ],
    ],
  );
  say(`\nstored and verified in ClickHouse: ${millrace.verified ? 'every acknowledged data point, once' : 'NO'}`);
  say(`${figure(pointsPerSecond)} data points/s stored (target ${figure(pointsPerSecondMin)})`);
  for (const { name, load } of peers) if (load.invalid) say(`INVALID ${name}: ${load.invalid}`);
  if (millrace.invalid) say(`INVALID Millrace: ${millrace.invalid}`);
  targets.atLeast('stored:', pointsPerSecond, pointsPerSecondMin, ' data points/s');
  targets.none('messages that were refused:', totalOf(millrace.refused));
  return { peers, millrace, pointsPerSecond, isClean: millrace.verified };
}

/** Gateways that send for all their devices in each message. */
export function offer(port: number, tokens: string[], settings: GatewaySettings, level: Level, order: LoadOrder) {
  const { children, window, processes } = settings;
  const clients = tokens.map((token, gateway) => ({
    token,
    children: Array.from({ length: children }, (_, n) => `gateway-${gateway}-device-${n}`),
  }));
  return runMqttLoad({ host: '127.0.0.1', port, clients, processes, window, level, ...order });
}

async function measurePeer(peer: Peer, settings: GatewaySettings) {
  try {
    const { gateways, seconds, warmupSeconds } = settings;
    const tokens = Array.from({ length: gateways }, (_, n) => `gateway-${n}`);
    const cpuBefore = cpuMsOf(peer.pid);
    const order = { rate: 0, seconds, warmupSeconds, firstTs: Date.now(), stepMs: 100 };
    // Aedes speaks 3.1.1 only.
    const load: LoadResult = await offer(peer.port, tokens, settings, 4, order);
    const cpuUs = ((cpuMsOf(peer.pid) - cpuBefore) * 1000) / load.accepted;
    sayFailures(load);
    return { name: peer.name, version: peer.version, load, cpuUs };
  } finally {
    peer.close();
  }
}

async function oneSite(settings: GatewaySettings, workers: number, targets: Targets) {
  const { siteChildren, siteSeconds, siteCommandsPerSecond } = settings;
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  const gateway = new SiteGateway();
  try {
    const [token = ''] = await createDevices(engine.api, 1, { additionalInfo: { gateway: true } });
    const width = String(siteChildren).length;
    const children = Array.from({ length: siteChildren }, (_, n) => `site-${String(n).padStart(width, '0')}`);
    const firstTs = Date.now() - 3_600_000;
    const created = await gateway.connect({ host: '127.0.0.1', port: engine.mqttPort, token, children, firstTs });
    say(`\n${figure(siteChildren)} new devices connected in ${created.seconds.toFixed(1)} s`);
    const operators = await Operators.of(engine, children);
    // These commands warm up the code.
    await operators.offer(commandsBefore, commandsBefore / 2);
    const sending = gateway.send(siteSeconds);
    const commands = await operators.offer(siteCommandsPerSecond * (siteSeconds - 2), siteCommandsPerSecond);
    const sent = await sending;
    const stored = await storedPoints(engine, sent.accepted * recordPoints);
    const restored = await gateway.reconnect();
    const after = await operators.offer(commandsAfterReconnect, commandsAfterReconnect);
    const pushed = await pushAttributes(engine, operators.ids, gateway);
    operators.close();
    const header = [`${figure(siteChildren)} devices, one gateway`, 'count', 'failed', 'p50 ms', 'p99 ms', 'max ms'];
    const line = (name: string, count: number, failed: number, { p50Ms, p99Ms, maxMs }: LatencySummary) => {
      return [name, count, failed, p50Ms, p99Ms, maxMs];
    };
    const failed = siteChildren * siteSeconds - sent.accepted;
    table(header, [
      line('telemetry, acknowledged', sent.accepted, failed, sent.latency),
      line('commands to random devices', commands.ended, commands.failed, commands.latency),
      line('commands after a reconnect', after.ended, after.failed, after.latency),
    ]);
    say(`\nreconnected and all devices routed again in ${restored.seconds.toFixed(1)} s; attributes pushed: ${pushed}`);
    say(`stored: ${stored ? 'every acknowledged data point' : 'NO'}; refused: ${refusedText(sent.refused)}`);
    say(`target: commands p99 ${commandP99MsMax} ms`);
    targets.atMost('commands to devices of one gateway: p99', commands.latency.p99Ms, commandP99MsMax, ' ms');
    targets.none('messages of one gateway without acknowledgement:', failed);
    targets.none('commands that failed:', commands.failed + after.failed);
    targets.none('attributes that were not pushed after the reconnect:', attributesAfterReconnect - pushed);
    return { created, sent, commands, restored, after, pushed, stored, isClean: stored };
  } finally {
    gateway.close();
    await engine.destroy();
  }
}

/** Writes a shared attribute of some devices; returns the number of pushes to the gateway. */
async function pushAttributes(engine: Engine, ids: string[], gateway: SiteGateway): Promise<number> {
  for (const id of ids.slice(0, attributesAfterReconnect)) {
    const path = `/api/plugins/telemetry/DEVICE/${id}/attributes/SHARED_SCOPE`;
    const { status } = await engine.api.send('POST', path, { interval: 5 });
    if (status !== 200) throw new Error(`a shared attribute was answered ${status}`);
  }
  await eventually(async () => gateway.pushed.length >= attributesAfterReconnect, 5_000).catch(() => {});
  return gateway.pushed.length;
}

async function storedPoints(engine: Engine, expected: number): Promise<boolean> {
  const count = async () => Number((await engine.clickhouse('SELECT count() FROM telemetry FINAL'))[0]![0]);
  await eventually(async () => (await count()) >= expected, 60_000, 200).catch(() => {});
  return (await count()) === expected;
}

/** Users that send commands over REST, at a fixed rate; a latency counts from when the command was due. */
class Operators {
  readonly ids: string[];
  readonly #engine: Engine;
  readonly #key: string;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: operatorSockets });

  private constructor(engine: Engine, ids: string[], key: string) {
    this.#engine = engine;
    this.ids = ids;
    this.#key = key;
  }

  /** Looks up the ids of some of the devices, drawn at random. */
  static async of(engine: Engine, names: string[], count = 300): Promise<Operators> {
    const ids: string[] = [];
    for (let n = 0; n < count; n += 1) {
      const name = names[Math.floor(Math.random() * names.length)]!;
      const answer = await engine.api.send('GET', `/api/tenant/devices?deviceName=${name}`);
      if (answer.status !== 200) throw new Error(`${name} is not a device: ${answer.status}`);
      ids.push(((await answer.json()) as { id: { id: string } }).id.id);
    }
    return new Operators(engine, ids, await engine.api.createKey());
  }

  async offer(total: number, rate: number) {
    const histogram = new Histogram();
    const begin = performance.now();
    let failed = 0;
    const calls: Promise<void>[] = [];
    for (let n = 0; n < total; n += 1) {
      const dueAt = begin + (n * 1000) / rate;
      while (performance.now() < dueAt) await sleep(1);
      const call = this.#command(this.ids[Math.floor(Math.random() * this.ids.length)]!, n);
      calls.push(
        call.then((answered) => {
          if (answered) histogram.record((performance.now() - dueAt) * 1000);
          else failed += 1;
        }),
      );
    }
    await Promise.all(calls);
    return { ended: histogram.total, failed, latency: summaryOf(histogram) };
  }

  close(): void {
    this.#agent.destroy();
  }

  #command(id: string, n: number): Promise<boolean> {
    const body = `{"method":"bench","params":${n}}`;
    const headers = {
      'x-authorization': `ApiKey ${this.#key}`,
      'content-type': 'application/json',
      'content-length': body.length,
    };
    return new Promise((resolve) => {
      const url = `${this.#engine.api.http}/api/rpc/twoway/${id}`;
      const call = request(url, { method: 'POST', agent: this.#agent, headers, timeout: answerMsMax }, (response) => {
        let text = '';
        response.on('data', (piece: Buffer) => {
          text += piece.toString();
        });
        response.on('end', () => resolve(response.statusCode === 200 && text === `{"n":${n}}`));
      });
      call.on('timeout', () => call.destroy(new Error('no answer')));
      call.on('error', () => resolve(false));
      call.end(body);
    });
  }
}
