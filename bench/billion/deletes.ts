/**
 * Deletes in the large table: one key of some devices, then other devices as a whole, until no point of them is left.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { Histogram, type LatencySummary, summaryOf } from '../load/histogram.ts';
import type { DayPlan } from './plan.ts';
import type { KnownDevice } from './reads.ts';

const goneMsMax = 120_000;

export interface DeleteResult {
  name: string;
  /** Times until the answer, and until ClickHouse has no such point. */
  answer: LatencySummary;
  gone: LatencySummary;
  isRight: boolean;
}

/** Deletes points of all devices. Also returns how many points are gone. */
export async function measureDeletes(engine: Engine, plan: DayPlan, known: KnownDevice[]) {
  const half = known.length >> 1;
  const [key = ''] = plan.keys;
  const numbers = await numbersOf(engine, plan, known);
  // A deleted point is a row of kind 0, which a merge puts in its place.
  const rows = (id: string, more = '') => {
    const where = `device = ${numbers.get(id)} AND kind != 0${more}`;
    return async () => (await engine.clickhouse(`SELECT count() FROM telemetry FINAL WHERE ${where}`))[0]![0];
  };
  const ofKey = await measure(engine, 'a key of a device', known.slice(0, half), ({ id }) => ({
    path: `/api/plugins/telemetry/DEVICE/${id}/timeseries/delete?keys=${key}&deleteAllDataForKeys=true`,
    left: rows(id, ` AND key = '${key}'`),
  }));
  const others = String(plan.devicePoints - plan.turns);
  for (const { id } of known.slice(0, half)) ofKey.isRight &&= (await rows(id)()) === others;
  const whole = await measure(engine, 'a device', known.slice(half), ({ id }) => {
    return { path: `/api/device/${id}`, left: rows(id) };
  });
  const points = half * plan.turns + (known.length - half) * plan.devicePoints;
  return { results: [ofKey, whole], points };
}

async function measure(
  engine: Engine,
  name: string,
  known: KnownDevice[],
  taskOf: (device: KnownDevice) => { path: string; left: () => Promise<string | undefined> },
): Promise<DeleteResult> {
  const [answer, gone] = [new Histogram(), new Histogram()];
  let isRight = true;
  for (const device of known) {
    const { path, left } = taskOf(device);
    const startedAt = performance.now();
    const { status } = await engine.api.send('DELETE', path);
    answer.record((performance.now() - startedAt) * 1000);
    // 202: the delete is kept and carried out later.
    if (status !== 200 && status !== 202) throw new Error(`DELETE ${path} was answered ${status}`);
    await eventually(async () => (await left()) === '0', goneMsMax, 10).catch(() => {
      isRight = false;
    });
    gone.record((performance.now() - startedAt) * 1000);
    await sleep(1);
  }
  return { name, answer: summaryOf(answer), gone: summaryOf(gone), isRight };
}

/** The numbers of devices in ClickHouse. */
async function numbersOf(engine: Engine, plan: DayPlan, known: KnownDevice[]): Promise<Map<string, string>> {
  const names = new Map(known.map(({ device, id }) => [plan.nameOf(device), id]));
  const list = [...names.keys()].map((name) => `'${name}'`).join(',');
  const rows = await engine.clickhouse(`SELECT name, device FROM device_metadata FINAL WHERE name IN (${list})`);
  return new Map(rows.map(([name = '', number = '']) => [names.get(name)!, number]));
}
