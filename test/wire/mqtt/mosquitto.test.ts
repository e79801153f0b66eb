/**
 * mosquitto_pub and mosquitto_sub of Debian as devices: one sends a message and disconnects, the other waits for
 * messages.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { storedValues, telemetry } from '../../harness/mqtt-device.ts';
import { newPackage, saveDevice } from '../../harness/ota.ts';
import { ok } from '../../harness/people.ts';
import { mqttPort, mqttsEngine, newDevice } from '../../harness/shared-engine.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-mosquitto-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const running: ChildProcess[] = [];
afterEach(() => {
  for (const child of running.splice(0)) child.kill('SIGKILL');
});

interface Run {
  child: ChildProcess;
  /** The whole output. */
  output: () => string;
  exit: Promise<number | null>;
}

/** Runs one of the two programs with the address of the engine; `input` is its standard input. */
function run(program: 'mosquitto_pub' | 'mosquitto_sub', args: string[], input = ''): Run {
  // The output is flushed at each line. Without that the programs would write to a pipe in pieces of four kilobytes.
  const child = spawn('stdbuf', ['-oL', program, '-h', '127.0.0.1', ...args], { stdio: ['pipe', 'pipe', 'pipe'] });
  running.push(child);
  let text = '';
  for (const stream of [child.stdout!, child.stderr!]) stream.on('data', (chunk: Buffer) => (text += String(chunk)));
  // The program may end before it reads anything.
  child.stdin!.on('error', () => {});
  child.stdin!.end(input);
  return { child, output: () => text, exit: once(child, 'close').then(([code]) => code as number | null) };
}

async function publish(args: string[], input?: string): Promise<number | null> {
  const { exit, output } = run('mosquitto_pub', args, input);
  const code = await exit;
  if (code !== 0) expect(output()).toMatch(/\w/);
  return code;
}

for (const version of ['mqttv31', 'mqttv311', 'mqttv5']) {
  const to = (token: string) => ['-p', String(mqttPort()), '-V', version, '-u', token];

  describe(version, () => {
    test('one message of each QoS, in one segment: stored', async () => {
      const device = await newDevice();
      for (const qos of ['0', '1', '2']) {
        const message = ['-t', telemetry, '-q', qos, '-m', `{"q${qos}":${qos}}`];
        expect(await publish([...to(device.token), ...message])).toBe(0);
      }
      for (const qos of ['0', '1', '2']) expect(await storedValues(device, `q${qos}`)).toEqual([qos]);
    });

    test('lines of standard input are stored, each', async () => {
      const device = await newDevice();
      const now = Date.now();
      const lines = Array.from({ length: 500 }, (_, n) => `{"ts":${now - n},"values":{"line":${n}}}\n`).join('');
      expect(await publish([...to(device.token), '-t', telemetry, '-q', '1', '-l'], lines)).toBe(0);
      expect(await storedValues(device, 'line', 500)).toHaveLength(500);
    });

    test('an unknown token gets the reason', async () => {
      const { exit, output } = run('mosquitto_pub', [...to('nobody'), '-t', telemetry, '-q', '1', '-m', '{"a":1}']);
      expect(await exit).not.toBe(0);
      expect(output()).toMatch(
        version === 'mqttv5' ? /bad user name or password|not authori[sz]ed/i : /not authori[sz]ed/i,
      );
    });

    test('a subscriber gets shared attributes and commands', async () => {
      const user = await DeviceUser.create();
      const topics = ['-t', 'v1/devices/me/attributes', '-t', 'v1/devices/me/rpc/request/+'];
      const subscriber = run('mosquitto_sub', [...to(user.device.token), ...topics, '-q', '1', '-v', '-d']);
      await eventually(() => /Subscribed/.test(subscriber.output()));
      await user.set('SHARED_SCOPE', '{"valve":7}');
      await eventually(() => subscriber.output().includes('v1/devices/me/attributes {"valve":7}'));
      await ok('POST', `/api/rpc/oneway/${user.device.id}`, { method: 'ring', params: null });
      await eventually(() => /v1\/devices\/me\/rpc\/request\/\d+ \{"method":"ring"/.test(subscriber.output()));
    });

    test('a message over TLS is stored', async () => {
      const device = await newDevice();
      const { port, ca } = mqttsEngine();
      const file = join(directory, `${version}.pem`);
      writeFileSync(file, ca);
      const message = ['-t', telemetry, '-q', '1', '-m', '{"tls":true}'];
      const secure = ['-p', String(port), '--cafile', file, '-V', version, '-u', device.token];
      expect(await publish([...secure, ...message])).toBe(0);
      expect(await storedValues(device, 'tls')).toEqual(['true']);
    });
  });
}

test('MQTT 5: a refused message ends mosquitto_pub with a reason', async () => {
  const device = await newDevice();
  const args = ['-p', String(mqttPort()), '-V', 'mqttv5', '-u', device.token, '-q', '1', '-d', '-t', telemetry];
  const { exit, output } = run('mosquitto_pub', [...args, '-m', '{"a":']);
  await exit;
  expect(output()).toMatch(/RC:153|Payload format/i);
});

test('the examples of docs/mqtt.md run as they are written', async () => {
  const firmwareId = (await newPackage({}, { bytes: Buffer.from('abc') })).id;
  const blocks = [...readFileSync('docs/mqtt.md', 'utf8').matchAll(/```sh\n(.*?)```/gs)].map(([, block]) => block!);
  const examples = blocks.flatMap((block) => block.replaceAll('\\\n', ' ').trim().split('\n'));
  expect(examples.length).toBeGreaterThan(10);
  const endings = await Promise.all(
    examples.map(async (example) => {
      // Each example has a device of its own, because two sessions of one device would end each other.
      const device = await newDevice();
      const isGateway = example.includes('v1/gateway/');
      await saveDevice(device.id, { firmwareId, ...(isGateway && { additionalInfo: { gateway: true } }) });
      const address = `-h 127.0.0.1 -p ${mqttPort()}`;
      // A subscriber ends with code 27 when no message has arrived for a while; a request waits longer for its answer.
      const wait = example.startsWith('mosquitto_sub') ? '-W 1' : example.startsWith('mosquitto_rr') ? '-W 20' : '';
      // Names of children are made unique, because the gateway of the next example would take a child over.
      const line = example
        .replace(/\b(mosquitto_\w+)/, `$1 ${address} ${wait}`)
        .replace(/"([AB])"/g, `"$1 of ${device.token}"`);
      const child = spawn('sh', ['-c', line], { stdio: 'ignore', env: { ...process.env, TOKEN: device.token } });
      running.push(child);
      const [code] = (await once(child, 'close')) as [number | null];
      return `${code} ${example}`;
    }),
  );
  expect(endings).toEqual(examples.map((example) => `${example.startsWith('mosquitto_sub') ? 27 : 0} ${example}`));
});
