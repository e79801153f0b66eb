/**
 * One, two and three hosts of one worker each on the same stores, with the same fleet and the same load in all: what a
 * message, an event on the bus and a command cost, and what an idle host asks of PostgreSQL, as ratios to one host.
 * Then what an event costs the bus with many simulated workers, and what statements cost without names (PgBouncer).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { createLog } from '../../src/base/log.ts';
import { lookUpLogins } from '../../src/device/sql/look-up-store.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import type { Device } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { connectMqtt, type MqttClient } from '../../test/harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../../test/harness/stores.ts';
import { cpuBetween, cpuByRole } from '../cpu.ts';
import { within } from '../deadline.ts';
import { createFleet, tokenOf } from '../engine-under-load.ts';
import { addedUp, refusedText } from '../load/counts.ts';
import { Histogram, type LatencySummary, summaryOf } from '../load/histogram.ts';
import { runHttpLoad } from '../load/http/http.ts';
import { type BusCost, benchBusCost, benchLimitsCost, type LimitsCost } from '../micro/bus-cost.ts';
import { figure, median, say, sayProgress, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const log = createLog('fatal', 'bench');
const simulatedWorkers = [8, 16, 64];
/** A session of PostgreSQL that becomes idle reports its transactions up to 10 s later (`PGSTAT_IDLE_INTERVAL`). */
const settleMs = 12_000;
const commandMsMax = 5_000;
const updateMsMax = 30_000;

interface HostFigures {
  hosts: number;
  /** Of all hosts together, in a second without messages. */
  idleCpuMs: number;
  /** Above that of idle hosts. */
  cpuMicrosPerMessage: number;
  idleStatements: number;
  loadedStatements: number;
  connect: number;
  command: number;
  attribute: number;
  commands: LatencySummary;
  refused: Record<string, number>;
  /** Commands that were not executed, by the answer to their caller. */
  failed: Record<string, number>;
}

export async function runHosts(settings: BenchSettings): Promise<boolean> {
  const { hosts: hostsMax } = settings.hosts;
  const stores = await startStores();
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log });
  const figures: HostFigures[] = [];
  let names: NameCost;
  try {
    for (let count = 1; count <= hostsMax; count += 1) {
      sayProgress(`${hostsText(count)} of ${hostsMax}`);
      figures.push(await measure(stores, postgres, count, settings));
    }
    say('');
    names = await nameCost(stores, settings.hosts.statements);
  } finally {
    await postgres.close();
    await stores.stopAll();
  }
  printHosts(figures);
  const simulated: BusCost[] = [];
  const limited: LimitsCost[] = [];
  for (const workers of simulatedWorkers) {
    simulated.push(await benchBusCost(workers));
    limited.push(await benchLimitsCost(workers));
  }
  say('');
  table(
    ['simulated workers', 'deliveries per connect', 'command', 'attribute change', 'channels of a worker'],
    simulated.map((each) => [each.workers, each.connect, each.command, each.attribute, each.channelsPerWorker]),
  );
  say('');
  table(
    ['simulated workers', 'deliveries per second and worker for rate limits: idle', 'busy', 'busy, at the home'],
    limited.map(({ workers, idle, busy, busyMax }) => [workers, idle, busy, busyMax]),
  );
  say('');
  table(
    ['a look-up of one device', 'us', 'ratio'],
    [
      ['named statements', names.namedMicros, 1],
      ['DATABASE_BEHIND_POOLER=true', names.unnamedMicros, names.unnamedMicros / names.namedMicros],
    ],
  );
  writeResult('hosts', settings, { figures, simulated, limited, names });
  return figures.every(({ refused, failed }) => Object.keys({ ...refused, ...failed }).length === 0);
}

async function measure(
  stores: Stores,
  postgres: Postgres,
  count: number,
  settings: BenchSettings,
): Promise<HostFigures> {
  const { devices, rate, seconds, idleSeconds, events, commands, commandRate } = settings.hosts;
  const env = { ...hostSettings(stores), LOG_LEVEL: 'warn' };
  const engines: Engine[] = [];
  const sessions: Connected[] = [];
  try {
    for (let n = 0; n < count; n += 1) engines.push(await startEngine({ workers: 1, env }));
    const hosts = new Hosts(engines, postgres);
    const fleet = await createFleet(hosts.first.api, `bench-hosts-${count}`, devices);
    // As many sessions at each host; a command and an attribute change come to the host before.
    for (const [n, device] of fleet.entries()) sessions.push(await connect(device, engines[n % count]!));
    await sleep(settleMs);
    const idle = await hosts.during(async () => await sleep(idleSeconds * 1000));

    const load = await hosts.during(async () => {
      const parts = engines.map(({ port }, n) => {
        const tokens = fleet.filter((_, place) => place % count === n).map(({ token }) => token);
        return runHttpLoad({
          ...{ host: '127.0.0.1', port, tokens, sockets: Math.min(16, tokens.length), processes: 1, isBeside: n > 0 },
          ...{ rate: rate / count, seconds, warmupSeconds: 1, firstTs: Date.now() - 3_600_000 * count, stepMs: 1 },
        });
      });
      return await Promise.all(parts);
    });
    const messages = rate * (seconds + 1);
    const refused = addedUp(load.result.map((part) => part.refused));

    const key = await hosts.first.api.createKey();
    const callers = (n: number) => engines[(n + 1) % count]!;
    const deliveries = async (event: (n: number) => Promise<unknown>): Promise<number> => {
      const spent = await hosts.during(async () => {
        for (let n = 0; n < events; n += 1) await event(n);
      });
      const quiet = idle.deliveries * (spent.seconds / idle.seconds);
      return Math.max(0, (spent.deliveries - quiet) / events);
    };
    const attribute = await deliveries(async (n) => {
      const path = `/api/plugins/telemetry/DEVICE/${fleet[n % devices]!.id}/attributes/SHARED_SCOPE`;
      await callers(n).api.send('POST', path, { n });
      await sessions[n % devices]!.updated(n);
    });
    const command = await deliveries((n) => sendCommand(callers(n), fleet[n % devices]!, key, n));
    const ofCommands = await offerCommands(callers, fleet, key, { count: commands, rate: commandRate });
    const connected = await deliveries(async (n) => {
      // The session moves to the next host, or stays at the only one.
      sessions.push(await connect(fleet[n % devices]!, callers(n)));
    });
    return {
      hosts: count,
      idleCpuMs: idle.cpuMs / idle.seconds,
      cpuMicrosPerMessage: ((load.cpuMs - (idle.cpuMs * load.seconds) / idle.seconds) * 1000) / messages,
      idleStatements: idle.statements / idle.seconds,
      loadedStatements: load.statements / load.seconds,
      ...{ connect: connected, command, attribute, refused },
      ...{ commands: summaryOf(ofCommands.histogram), failed: ofCommands.failed },
    };
  } finally {
    for (const { client } of sessions) client.cut();
    for (const engine of engines) await engine.destroy();
  }
}

function hostsText(count: number): string {
  return count === 1 ? '1 host' : `${count} hosts`;
}

function printHosts(figures: readonly HostFigures[]): void {
  const [one] = figures as [HostFigures];
  const ratio = (value: number, of: number) => `${figure(value)} (${figure(value / of)})`;
  table(
    [
      'hosts (ratio to one)',
      'CPU us/message',
      'idle CPU ms/s',
      'statements/s idle',
      'statements/s loaded',
      'commands p50 ms',
      'p99 ms',
    ],
    figures.map((each) => [
      String(each.hosts),
      ratio(each.cpuMicrosPerMessage, one.cpuMicrosPerMessage),
      ratio(each.idleCpuMs, one.idleCpuMs),
      ratio(each.idleStatements, one.idleStatements),
      ratio(each.loadedStatements, one.loadedStatements),
      ratio(each.commands.p50Ms, one.commands.p50Ms),
      ratio(each.commands.p99Ms, one.commands.p99Ms),
    ]),
  );
  say('');
  table(
    ['deliveries on the bus (ratio to one)', 'for a connect', 'a command', 'an attribute change'],
    figures.map((each) => [
      hostsText(each.hosts),
      ratio(each.connect, one.connect),
      ratio(each.command, one.command),
      ratio(each.attribute, one.attribute),
    ]),
  );
  for (const { hosts, refused, failed } of figures) {
    if (Object.keys(refused).length > 0) say(`${hostsText(hosts)}: messages refused with ${refusedText(refused)}`);
    if (Object.keys(failed).length > 0) say(`${hostsText(hosts)}: failed commands: ${refusedText(failed)}`);
  }
}

/** What a phase cost all hosts together. */
interface Spent<Result> {
  result: Result;
  seconds: number;
  cpuMs: number;
  statements: number;
  deliveries: number;
}

class Hosts {
  readonly first: Engine;
  readonly #engines: readonly Engine[];
  readonly #postgres: Postgres;

  constructor(engines: readonly Engine[], postgres: Postgres) {
    this.#engines = engines;
    this.first = engines[0]!;
    this.#postgres = postgres;
  }

  async during<Result>(phase: () => Promise<Result>): Promise<Spent<Result>> {
    const cpuBefore = this.#engines.map((engine) => cpuByRole(engine.pids()));
    const [deliveriesBefore, statementsBefore, began] = [
      await this.#deliveries(),
      await this.#transactions(),
      performance.now(),
    ];
    const result = await phase();
    const seconds = (performance.now() - began) / 1000;
    const cpuMs = this.#engines
      .flatMap((engine, n) => Object.values(cpuBetween(cpuBefore[n]!, cpuByRole(engine.pids()))))
      .reduce((sum, ms) => sum + ms, 0);
    const statements = (await this.#transactions()) - statementsBefore;
    return { result, seconds, cpuMs, statements, deliveries: (await this.#deliveries()) - deliveriesBefore };
  }

  /** Messages that Redis has handed to workers. */
  async #deliveries(): Promise<number> {
    const counts = await Promise.all(this.#engines.map((engine) => engine.metric('bus_delivered_total')));
    return counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
  }

  /** Statements outside transactions count as transactions. */
  async #transactions(): Promise<number> {
    const [row] = await this.#postgres.query<{ count: number }>(
      `select (xact_commit + xact_rollback)::float8 as count from pg_stat_database where datname = current_database()`,
    );
    return row!.count;
  }
}

/** A device that is connected over MQTT, answers each command and notes its last update. */
class Connected {
  readonly client: MqttClient;
  #last = -1;
  #onUpdate: () => void = () => {};

  constructor(client: MqttClient) {
    this.client = client;
    // Ends with the connection.
    this.#receive().catch(() => {});
  }

  async updated(n: number): Promise<void> {
    if (this.#last === n) return;
    const updated = new Promise<void>((resolve) => {
      this.#onUpdate = resolve;
    });
    await within(updated, updateMsMax, 'a device did not receive the change of an attribute');
  }

  async #receive(): Promise<void> {
    for (;;) {
      const { topic, json } = await this.client.message(undefined, { waitMsMax: 3_600_000 });
      if (topic.includes('/rpc/request/')) {
        await this.client.publish(topic.replace('request', 'response'), { n: json.params });
      } else {
        this.#last = json.n;
        this.#onUpdate();
      }
    }
  }
}

async function connect({ token }: Device, { mqttPort }: Engine): Promise<Connected> {
  const client = await connectMqtt({ port: mqttPort, token });
  await client.subscribe('v1/devices/me/rpc/request/+');
  await client.subscribe('v1/devices/me/attributes');
  return new Connected(client);
}

/** Resolves with the failure; undefined when the device has answered. */
async function sendCommand({ api }: Engine, { id }: Device, key: string, n: number): Promise<string | undefined> {
  const answer = await fetch(`${api.http}/api/rpc/twoway/${id}`, {
    method: 'POST',
    headers: { 'x-authorization': `ApiKey ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ method: 'bench', params: n, timeout: commandMsMax }),
  });
  const text = await answer.text();
  if (text === `{"n":${n}}`) return undefined;
  const { message = '' } = text.startsWith('{') ? (JSON.parse(text) as { message?: string }) : {};
  return `${answer.status} ${message}`;
}

/** Offers commands at a fixed rate; a latency counts from the moment at which the command was due. */
async function offerCommands(
  callers: (n: number) => Engine,
  fleet: readonly Device[],
  key: string,
  { count, rate }: { count: number; rate: number },
): Promise<{ histogram: Histogram; failed: Record<string, number> }> {
  const histogram = new Histogram();
  const failed: Record<string, number> = {};
  const began = performance.now();
  const calls: Promise<void>[] = [];
  for (let n = 0; n < count; n += 1) {
    const due = began + (n * 1000) / rate;
    await sleep(Math.max(0, due - performance.now()));
    calls.push(
      sendCommand(callers(n), fleet[n % fleet.length]!, key, n).then((failure) => {
        if (failure === undefined) histogram.record((performance.now() - due) * 1000);
        else failed[failure] = (failed[failure] ?? 0) + 1;
      }),
    );
  }
  await Promise.all(calls);
  return { histogram, failed };
}

interface NameCost {
  namedMicros: number;
  unnamedMicros: number;
}

/** The median of several rounds in turn, one statement after the other on one connection. */
async function nameCost({ postgres: { url } }: Stores, statements: number): Promise<NameCost> {
  const [named, unnamed] = [false, true].map((behindPooler) => openPostgres({ url, poolMax: 1, log, behindPooler }));
  const micros = async (postgres: Postgres): Promise<number> => {
    const began = performance.now();
    for (let n = 0; n < statements; n += 1) await lookUpLogins(postgres, [tokenOf('bench-hosts-1', n)]);
    return ((performance.now() - began) * 1000) / statements;
  };
  try {
    await micros(named!);
    await micros(unnamed!);
    const rounds: [number[], number[]] = [[], []];
    for (let round = 0; round < 5; round += 1) {
      rounds[0].push(await micros(named!));
      rounds[1].push(await micros(unnamed!));
    }
    return { namedMicros: median(rounds[0]), unnamedMicros: median(rounds[1]) };
  } finally {
    await Promise.all([named!.close(), unnamed!.close()]);
  }
}
