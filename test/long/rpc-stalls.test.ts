/**
 * Commands to a device whose worker is paused when they are given, as by the garbage collector: the device gets each
 * command once, soon after its worker continues.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import type { RawConnection } from '../harness/raw.ts';
import { connectToEachWorker, restOn } from '../harness/workers.ts';

let engine: Engine;
let operators: RawConnection[];

beforeAll(async () => {
  engine = await startEngine({ workers: 2, env: { HTTP_TELL_WORKER: 'true' } });
  operators = await connectToEachWorker(engine.port);
}, 60_000);

afterAll(async () => {
  for (const connection of operators ?? []) connection.close();
  await engine?.destroy();
}, 60_000);

const rounds = 5;
/** A busy machine adds to the second that is promised. */
const afterWakingMsMax = 2_000;

test.each([300, 1_000, 3_000])(
  'a worker that is paused for %i ms delivers what came meanwhile, once',
  async (stallMs) => {
    const device = await engine.api.newDevice();
    const client = await connectMqttOn(1, { port: engine.mqttPort, token: device.token });
    await client.subscribe('v1/devices/me/rpc/request/+');
    const token = await engine.api.adminToken();
    const pid = engine.pids().get('worker-1')!;
    const waits: number[] = [];
    for (let n = 0; n < rounds; n += 1) {
      const persistent = n % 2 === 1;
      const body = JSON.stringify({ method: 'turn', params: { n }, timeout: 20_000, persistent });
      process.kill(pid, 'SIGSTOP');
      const call = restOn(operators[0]!, token, { path: `/api/rpc/twoway/${device.id}`, body });
      await sleep(stallMs);
      process.kill(pid, 'SIGCONT');
      const woke = performance.now();
      const { topic, json } = await client.message();
      waits.push(performance.now() - woke);
      expect(json.params).toEqual({ n });
      await client.publish(topic.replace('request', 'response'), { n });
      const answer = await call;
      if (persistent) {
        const { rpcId } = JSON.parse(answer.body.toString()) as { rpcId: string };
        await expect.poll(async () => (await engine.api.persistentState(rpcId)).status).toBe('SUCCESSFUL');
      } else {
        expect(`${answer.status} ${answer.body}`).toBe(`200 {"n":${n}}`);
      }
      await client.quiet();
    }
    client.cut();
    // A stall of the machine makes one round late.
    expect(waits.sort((a, b) => a - b).at(-2)).toBeLessThan(afterWakingMsMax);
  },
  120_000,
);
