/**
 * For each resource that callers share, an attacker of one tenant beside a victim of another. The promise: no call of
 * the victim is refused, and its p99 at most doubles beside what a neighbour process does that burns as much CPU as the
 * attacker costs. Three measures of the same calls: alone, beside the attacker, beside the neighbour.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Api, Device } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { makeTenant } from '../../test/harness/tenants.ts';
import { cpuBetween, cpuByRole } from '../cpu.ts';
import { type Contest, contestsOf, devicesOf, monday, type Tenant } from '../hostile/contests.ts';
import { type Running, startAttack, startBurner } from '../load/attack.ts';
import type { AttackOrder } from '../load/attack-process.ts';
import { totalOf } from '../load/counts.ts';
import { type CallsResult, judged, makeCalls, right } from '../load/rest/calls.ts';
import { type Cell, figure, say, table, writeResult } from '../report.ts';
import { type BenchSettings, UsageError } from '../settings.ts';
import { Targets } from '../targets.ts';

/** An address in another network, so that shares of addresses and of networks count it apart from the victim. */
const attackerAddress = '127.0.1.2';
const ratioMax = 2;
const leadMs = 500;
/** Time in which the connections of the attacker are closed and their requests end. */
const settleMs = 1_500;

/** Small caps, so that one attacker can fill them; each is a setting. */
const caps = {
  HTTP_CONNECTIONS_MAX: '1000',
  HTTP_HELD_POLLS_MAX: '400',
  HTTP_BODY_BYTES_IN_FLIGHT_MAX: '67108864',
  WRONG_CREDENTIALS_PER_MINUTE_MAX: '30',
  // A command of the victim ends at its own deadline, so few connections keep its rate.
  MIN_SERVER_SIDE_RPC_TIMEOUT: '50',
  LOG_LEVEL: 'error',
};

interface Measure {
  /** Right answers in the measured time. */
  calls: number;
  p50Ms: number;
  p99Ms: number;
  /** Calls without a right answer, those of the warm-up too. */
  failed: number;
  outcomes: Record<string, number>;
  /** CPU of each kind of process, in cores. */
  cores: Record<string, number>;
}

export async function runHostile(settings: BenchSettings): Promise<boolean> {
  const { points, floorMs, only } = settings.hostile;
  const engine = await startEngine({ workers: 1, reports: true, env: caps });
  try {
    const victim = await firstTenant(engine.api);
    const attacker = await secondTenant(engine.api);
    await fill(engine.api, victim, attacker, points);
    const contests = await contestsOf(engine, victim, attacker, points);
    if (only > contests.length) throw new UsageError(`hostile.only must be 0 to ${contests.length}, not ${only}.`);
    const results = [];
    for (const [n, contest] of contests.entries()) {
      if (only > 0 && only !== n + 1) continue;
      const result = await compete(engine, contest, settings.hostile);
      const limitMs = ratioMax * Math.max(result.neighbour.p99Ms, floorMs);
      const fault = faultOf(contest.attack.mode, result, limitMs);
      results.push({ resource: contest.resource, ...result, limitMs, fault, holds: fault === '' });
      const { alone, neighbour, attacked, cores, statuses } = result;
      say(
        `${n + 1}. ${contest.resource}, ${alone.calls} calls: ${verdictText(fault)}\n` +
          `   p99 ${figure(alone.p99Ms)} ms alone, ${figure(neighbour.p99Ms)} beside a neighbour of ${figure(cores)} cores, ` +
          `${figure(attacked.p99Ms)} (p50 ${figure(attacked.p50Ms)}) beside the attacker, who got ${statusesText(statuses)}\n` +
          `   cores alone: ${coresText(alone)}; beside the attacker: ${coresText(attacked)}`,
      );
    }
    say('');
    table(
      [
        'resource',
        'p99 ms alone',
        'neighbour',
        'attacked',
        'at most',
        'refused',
        'cores',
        'the attacker got',
        'verdict',
      ],
      results.map(({ resource, alone, neighbour, attacked, limitMs, cores, statuses, fault }): Cell[] => [
        resource,
        alone.p99Ms,
        neighbour.p99Ms,
        attacked.p99Ms,
        limitMs,
        attacked.failed,
        cores,
        statusesText(statuses),
        verdictText(fault),
      ]),
    );
    say(
      `\nThe promise: nothing of the victim is refused, and its p99 beside the attacker is at most ${ratioMax} times that ` +
        `beside a neighbour who burns the same CPU (what is below ${figure(floorMs)} ms counts as that).`,
    );
    const targets = new Targets();
    for (const { resource, fault } of results) targets.faultless(fault === '' ? '' : `${resource}: ${fault}`);
    const holds = targets.tell();
    writeResult('hostile', settings, { results, missed: targets.missed });
    return results.length > 0 && holds;
  } finally {
    await engine.destroy();
  }
}

function verdictText(fault: string): string {
  return fault === '' ? 'holds' : `FAILS: ${fault}`;
}

/** Says which part of the promise is broken, or why the run proves nothing; '' = the promise holds. */
export function faultOf(
  mode: AttackOrder['mode'],
  { attacked, statuses }: { attacked: Pick<Measure, 'p99Ms' | 'outcomes'>; statuses: Record<number, number> },
  limitMs: number,
): string {
  const hasAttacked = mode !== 'answers' || Object.keys(statuses).some((status) => Number(status) > 0);
  const slow = attacked.p99Ms <= limitMs ? '' : `p99 ${figure(attacked.p99Ms)} ms, at most ${figure(limitMs)}`;
  const idle = hasAttacked ? '' : 'the attacker got no answer, which proves nothing: give more seconds';
  return [outcomesText(attacked), slow, idle].filter((text) => text !== '').join('; ');
}

async function compete(engine: Engine, { victim, attack }: Contest, settings: BenchSettings['hostile']) {
  const { warmupSeconds, samples } = settings;
  const seconds = Math.max(settings.seconds, samples / victim.rate);
  const measure = async (): Promise<Measure & { cpuMs: number }> => {
    const outcomes: Record<string, number> = {};
    const pids = engine.pids();
    const before = cpuByRole(pids);
    const startedAt = performance.now();
    const result = await makeCalls({
      ...{ port: victim.port, connections: victim.connections, rate: victim.rate, warmupSeconds, seconds },
      callOf: (n) => ({
        request: victim.request(n),
        outcomeOf: (status, body) => (status === victim.expected ? right : refusalText(status, body)),
      }),
      seen: (outcome) => {
        outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
      },
    });
    const elapsedMs = performance.now() - startedAt;
    const spent = cpuBetween(before, cpuByRole(pids));
    const cpuMs = Object.values(spent).reduce((sum, each) => sum + each, 0);
    const cores = Object.fromEntries(Object.entries(spent).map(([role, ms]) => [role, ms / elapsedMs]));
    return { ...summary(result, outcomes), cores, cpuMs };
  };
  const beside = async (running: Running) => {
    const startedAt = performance.now();
    await sleep(leadMs);
    const measured = await measure();
    const ended = await running.stop();
    const elapsedMs = performance.now() - startedAt;
    await sleep(settleMs);
    return { ...measured, ended, elapsedMs };
  };
  const alone = await measure();
  const requests = attack.requests.map((bytes) => bytes.toString('base64'));
  const attacked = await beside(startAttack({ ...attack, localAddress: attackerAddress, requests }));
  const costMs = Math.max(0, attacked.cpuMs - alone.cpuMs) + attacked.ended.cpuMs;
  const cores = costMs / attacked.elapsedMs;
  const neighbour = await beside(startBurner(cores));
  return { alone, attacked, neighbour, cores, statuses: attacked.ended.statuses };
}

function summary(result: CallsResult, counts: Record<string, number>): Omit<Measure, 'cores'> {
  const { count: calls, p50Ms, p99Ms } = judged(result).answered;
  const refused = totalOf(result.refused);
  const outcomes = { ...counts, unanswered: result.unanswered, 'refused connects': refused };
  const failed = Object.entries(outcomes).reduce((sum, [outcome, count]) => sum + (outcome === right ? 0 : count), 0);
  return { calls, p50Ms, p99Ms, failed, outcomes };
}

/** Returns the status and the message of a refusal; the message names the cap. */
function refusalText(status: number, body: string): string {
  const message = /"message":"([^"]{0,60})/.exec(body)?.[1] ?? '';
  return `${status} ${message}`.trim();
}

function statusesText(statuses: Record<number, number>): string {
  const texts = Object.entries(statuses).map(([status, count]) => {
    return `${figure(count)} × ${status === '0' ? 'broken' : status}`;
  });
  return texts.join(', ') || 'no answer';
}

function outcomesText({ outcomes }: Pick<Measure, 'outcomes'>): string {
  return Object.entries(outcomes)
    .filter(([outcome, count]) => outcome !== right && count > 0)
    .map(([outcome, count]) => `${count} × ${outcome}`)
    .join(', ');
}

/** Processes that used at least a hundredth of a core, the busiest first. */
function coresText({ cores }: Measure): string {
  const busy = Object.entries(cores).filter(([, share]) => share >= 0.01);
  return busy
    .sort(([, a], [, b]) => b - a)
    .map(([role, share]) => `${role} ${share.toFixed(2)}`)
    .join(', ');
}

async function firstTenant(api: Api): Promise<Tenant> {
  const token = await api.adminToken();
  return { token, devices: await newDevices(api, 'victim', token) };
}

async function secondTenant(api: Api): Promise<Tenant> {
  const { token: caller } = await api.login('sysadmin@millrace.local', api.address.adminPassword);
  const { token } = (await makeTenant(api, caller, 'attacker')).admin;
  return { token, devices: await newDevices(api, 'attacker', token) };
}

async function newDevices(api: Api, name: string, token: string): Promise<Device[]> {
  const devices = Array.from({ length: devicesOf }, (_, n) => ({
    name: `${name}-${n}`,
    accessToken: `${name}${String(n).padStart(12, '0')}`,
  }));
  return await api.createDevices(devices, token);
}

/** Fills the history of one device of each tenant: the attacker's gets `points`, the victim's a tenth of them. */
async function fill(api: Api, victim: Tenant, attacker: Tenant, points: number): Promise<void> {
  const perMessage = 2_000;
  const write = async ({ devices }: Tenant, count: number) => {
    for (let at = 0; at < count; at += perMessage) {
      const records = Array.from({ length: Math.min(perMessage, count - at) }, (_, n) => {
        return { ts: monday + (at + n) * 500, values: { flow: (at + n) / 7 } };
      });
      const status = await api.postTelemetry(devices[0]!.token, JSON.stringify(records));
      if (status !== 200) throw new Error(`telemetry: ${status}`);
    }
  };
  await Promise.all([write(attacker, points), write(victim, points / 10)]);
}
