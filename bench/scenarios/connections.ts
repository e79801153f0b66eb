/**
 * A fleet that is connected over MQTT and silent: the memory of a connection in the workers. Then the whole fleet loses
 * the network and reconnects at once, several times: the time that takes, and its effect on other senders of telemetry.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { residentBytesOf } from '../cpu.ts';
import { createDevices } from '../engine-under-load.ts';
import { Fleet, type FleetConnected } from '../load/mqtt/fleet.ts';
import { type MqttLoadResult, runMqttLoad } from '../load/mqtt/mqtt.ts';
import { figure, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const bytesPerConnectionMax = 12 * 1024;
const connectsPerSecondMin = 3_000;
/** Garbage of the connects is collected in idle time. */
const settleMs = 10_000;
const warmupConnections = 200;
const othersWindow = 4;
const quietSeconds = 6;
const beforeStormMs = 2_000;
/** The slowest storm that is still measured to its end. */
const stormConnectsPerSecondMin = 1_000;

export async function runConnections(settings: BenchSettings): Promise<boolean> {
  const { devices, workers, processes, stormRounds, othersConnections, othersRate } = settings.connections;
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  const fleets: Fleet[] = [];
  try {
    const tokens = await createDevices(engine.api, devices + othersConnections);
    const others = tokens.splice(devices);
    // A heap that grew while devices were created would have room for connections already.
    await engine.restart();
    const connect = async (part: string[], parts: number): Promise<FleetConnected> => {
      const { fleet, connected } = await Fleet.open('127.0.0.1', engine.mqttPort, part, parts);
      fleets.push(fleet);
      return connected;
    };
    // Code and buffers that the first connections bring along are not counted.
    await connect(tokens.slice(0, warmupConnections), 1);
    fleets.pop()!.close();
    await sleep(settleMs);
    const fresh = residentBytes(engine);
    // The first half also includes costs that all connections share: heap growth, tables, code.
    const half = devices >> 1;
    const first = await connect(tokens.slice(0, half), Math.max(1, processes >> 1));
    await sleep(settleMs);
    const afterHalf = residentBytes(engine);
    const second = await connect(tokens.slice(half), Math.max(1, processes >> 1));
    await sleep(settleMs);
    const afterAll = residentBytes(engine);
    const bytesPerConnection = (afterAll - afterHalf) / (devices - half);
    const bytesPerConnectionFromStart = (afterAll - fresh) / devices;
    say(`connected: ${figure(first.connectsPerSecond)}/s, then ${figure(second.connectsPerSecond)}/s`);

    let nextTs = Date.now() - 3_600_000;
    const send = (seconds: number): Promise<MqttLoadResult> => {
      nextTs += 600_000;
      const clients = others.map((token) => ({ token, children: [] }));
      const order = { rate: othersRate, warmupSeconds: 1, seconds, firstTs: nextTs, stepMs: 1, level: 4 as const };
      return runMqttLoad({
        host: '127.0.0.1',
        port: engine.mqttPort,
        clients,
        processes: 1,
        window: othersWindow,
        ...order,
      });
    };
    const quiet = await send(quietSeconds);
    const storms: { storm: FleetConnected; othersPerSecond: number; others: MqttLoadResult }[] = [];
    for (let round = 0; round < stormRounds; round += 1) {
      const sending = send(devices / stormConnectsPerSecondMin + beforeStormMs / 1000);
      await sleep(beforeStormMs);
      const parts = await Promise.all(fleets.map((fleet) => fleet.storm()));
      const storm = together(parts);
      const result = await sending;
      const acknowledged = result.between(storm.startedAtMs, storm.endedAtMs);
      const othersPerSecond = (acknowledged / (storm.endedAtMs - storm.startedAtMs)) * 1000;
      storms.push({ storm, othersPerSecond, others: result });
      await sleep(settleMs);
    }
    const afterStorms = (residentBytes(engine) - fresh) / devices;
    table(
      [`${figure(devices)} connections, ${workers} workers`, 'bytes each', 'from a fresh start', 'after the storms'],
      [['idle', bytesPerConnection, bytesPerConnectionFromStart, afterStorms]],
    );
    say('');
    table(
      ['', 'connects/s', 'failed attempts', 'others: messages/s', 'p50 ms', 'p99 ms', 'max ms'],
      [
        ['quiet', 0, 0, quiet.requestsPerSecond, quiet.latency.p50Ms, quiet.latency.p99Ms, quiet.latency.maxMs],
        ...storms.map(({ storm, othersPerSecond, others: { latency } }, n) => [
          `storm ${n + 1}`,
          storm.connectsPerSecond,
          Object.values(storm.failed).reduce((sum, count) => sum + count, 0),
          othersPerSecond,
          latency.p50Ms,
          latency.p99Ms,
          latency.maxMs,
        ]),
      ],
    );
    const lost = storms.reduce((sum, { storm }) => Math.max(sum, storm.lost), 0);
    for (const { storm } of storms) say(`failed attempts: ${JSON.stringify(storm.failed)}`);
    say(`connections that ended by themselves: ${lost}`);
    say(`targets: ${figure(bytesPerConnectionMax)} bytes each, ${figure(connectsPerSecondMin)} connects/s`);
    const slowest = Math.min(...storms.map(({ storm }) => storm.connectsPerSecond));
    const result = { bytesPerConnection, bytesPerConnectionFromStart, afterStorms, first, second, quiet, storms };
    writeResult('connections', settings.connections, result);
    return bytesPerConnection <= bytesPerConnectionMax && slowest >= connectsPerSecondMin && lost === 0;
  } finally {
    for (const fleet of fleets) fleet.close();
    await engine.destroy();
  }
}

function residentBytes(engine: Engine): number {
  return engine.workers().reduce((sum, pid) => sum + residentBytesOf(pid), 0);
}

/** Storms of several fleets at one time, as one. */
function together(parts: FleetConnected[]): FleetConnected {
  const connections = parts.reduce((sum, part) => sum + part.connections, 0);
  const startedAtMs = Math.min(...parts.map((part) => part.startedAtMs));
  const endedAtMs = Math.max(...parts.map((part) => part.endedAtMs));
  const lost = parts.reduce((sum, part) => sum + part.lost, 0);
  const failed: Record<string, number> = {};
  for (const part of parts) {
    for (const [what, count] of Object.entries(part.failed)) failed[what] = (failed[what] ?? 0) + count;
  }
  const connectsPerSecond = (connections / (endedAtMs - startedAtMs)) * 1000;
  return { connections, startedAtMs, endedAtMs, connectsPerSecond, failed, lost };
}
