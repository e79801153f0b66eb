/**
 * This build beside the build of another checkout, for instance of the commit before: the same loads in turn, so that
 * the other load of the machine affects both. A rate counts only what was found in ClickHouse afterwards.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type EngineOptions, startEngine } from '../../test/harness/engine.ts';
import { callerPath } from '../caller-path.ts';
import {
  createDevices,
  EngineUnderLoad,
  type Generator,
  httpGenerator,
  type MeasuredLoad,
} from '../engine-under-load.ts';
import { figure, median, say, table, writeResult } from '../report.ts';
import { type BenchSettings, UsageError } from '../settings.ts';
import { offer } from './gateway.ts';
import { generatorOf } from './mqtt.ts';

/** A load, and how its engine is prepared. */
export interface Kind {
  name: 'http' | 'mqtt' | 'gateway';
  start(options?: EngineOptions): Promise<EngineUnderLoad>;
}

interface Measured {
  rates: number[];
  /** CPU time for each message. */
  workerMicroseconds: number[];
  clickhouseMicroseconds: number[];
  verified: boolean;
  bytesPerPoint: number;
  loads: MeasuredLoad[];
}

interface Compared {
  name: string;
  before: Measured;
  now: Measured;
  rate: number;
  workerCpu: number;
  clickhouseCpu: number;
  cpu: number;
  bytes: number;
}

export async function runVersions(settings: BenchSettings, against: string): Promise<boolean> {
  if (against === '')
    throw new UsageError('Give --against DIR: another checkout, after `npm ci && npm run build` in it.');
  const main = join(callerPath(against), 'dist', 'main.js');
  if (!existsSync(main)) throw new UsageError(`There is no ${main}: run \`npm ci && npm run build\` in ${against}.`);
  const { workers } = settings.versions;
  const compared: Compared[] = [];
  for (const kind of kindsOf(settings, workers).filter(({ name }) => settings.versions[name] !== 0)) {
    compared.push(await compare(kind, main, settings.versions));
  }
  say('\nratios now / before: medians of the rounds, bytes after a merge\n');
  table(
    ['', 'before, messages/s', 'now, messages/s', 'rate', 'CPU', 'of workers', 'of ClickHouse', 'bytes/point'],
    compared.map(({ name, before, now, rate, cpu, workerCpu, clickhouseCpu, bytes }) => [
      name,
      median(before.rates),
      median(now.rates),
      rate.toFixed(3),
      cpu.toFixed(3),
      workerCpu.toFixed(3),
      clickhouseCpu.toFixed(3),
      bytes.toFixed(3),
    ]),
  );
  const verified = compared.every(({ before, now }) => before.verified && now.verified);
  say(`\nstored and verified in ClickHouse: ${verified ? 'every acknowledged record, once' : 'NO'}`);
  writeResult('versions', settings, { against: main, compared });
  return verified;
}

/** The three loads, each with an engine of so many workers. */
export function kindsOf(settings: BenchSettings, workers: number): Kind[] {
  const { http, mqtt, gateway } = settings;
  const plain = (devices: number, generator: Generator) => (options: EngineOptions | undefined) =>
    EngineUnderLoad.start(workers, devices, generator, options);
  return [
    { name: 'http', start: plain(http.devices, httpGenerator(http)) },
    { name: 'mqtt', start: plain(mqtt.connections, generatorOf(settings, mqtt.window)) },
    {
      name: 'gateway',
      start: async (options) => {
        const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' }, ...options });
        const tokens = await createDevices(engine.api, gateway.gateways, { additionalInfo: { gateway: true } });
        const send: Generator = (_, known, order) => offer(engine.mqttPort, known, gateway, 5, order);
        const under = new EngineUnderLoad(engine, tokens, send, gateway.children);
        // The first messages create the devices.
        await under.load(gateway.gateways, 1, 0);
        return under;
      },
    },
  ];
}

async function compare(kind: Kind, main: string, { rounds, seconds, warmupSeconds }: BenchSettings['versions']) {
  const before = await kind.start({ main });
  try {
    const now = await kind.start();
    try {
      const loads: { before: MeasuredLoad[]; now: MeasuredLoad[] } = { before: [], now: [] };
      for (let round = 0; round < rounds; round += 1) {
        // The build that begins alternates from round to round.
        for (const which of round % 2 === 0 ? (['before', 'now'] as const) : (['now', 'before'] as const)) {
          const engine = which === 'now' ? now : before;
          const load = await engine.load(0, seconds, warmupSeconds);
          loads[which].push(load);
          say(`${kind.name}, round ${round + 1}, ${which}: ${figure(load.storedRequestsPerSecond)} messages/s stored`);
        }
      }
      const [a, b] = [await measuredOf(before, loads.before), await measuredOf(now, loads.now)];
      return {
        name: kind.name,
        before: a,
        now: b,
        rate: median(b.rates) / median(a.rates),
        workerCpu: median(b.workerMicroseconds) / median(a.workerMicroseconds),
        clickhouseCpu: median(b.clickhouseMicroseconds) / median(a.clickhouseMicroseconds),
        cpu: median(bothOf(b)) / median(bothOf(a)),
        bytes: b.bytesPerPoint / a.bytesPerPoint,
      };
    } finally {
      await now.close();
    }
  } finally {
    await before.close();
  }
}

async function measuredOf(engine: EngineUnderLoad, loads: MeasuredLoad[]): Promise<Measured> {
  return {
    rates: loads.map(({ storedRequestsPerSecond }) => storedRequestsPerSecond),
    workerMicroseconds: loads.map(({ cpuMicrosecondsPerRequest: { workers = 0 } }) => workers),
    clickhouseMicroseconds: loads.map(({ cpuMicrosecondsPerRequest: { clickhouse = 0 } }) => clickhouse),
    verified: loads.every(({ verified }) => verified),
    bytesPerPoint: (await engine.bytesPerPoint()).merged,
    loads,
  };
}

function bothOf({ workerMicroseconds, clickhouseMicroseconds }: Measured): number[] {
  return workerMicroseconds.map((micros, i) => micros + clickhouseMicroseconds[i]!);
}
