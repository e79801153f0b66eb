/**
 * The MQTT reader over the real socket: streams of packets from a seed, most of them broken. Each connection ends when
 * its client has sent its end, what the engine sends is whole packets that begin with CONNACK, and the neighbours of
 * `fuzz/watch.ts` notice nothing.
 */
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../test/harness/engine.ts';
import type { Random } from '../test/harness/random.ts';
import { brokenStream, levels } from './mqtt-streams.ts';
import { type FuzzOptions, findingsMax, type Report, runCases, Tally } from './run.ts';
import { Watch } from './watch.ts';

const attackers = 8;

export async function fuzzMqtt(engine: Engine, options: FuzzOptions): Promise<Report> {
  const tokens = await attackingDevices(engine);
  const watch = await Watch.start(engine, options.servedMsMax);
  const ends = new Tally();
  const { findings } = watch;
  const one = async (random: Random, n: number) => {
    if (n === Math.floor(options.cases / 3)) watch.warm();
    const bytes = brokenStream(random, random.pick(levels), random.pick(tokens));
    const { received, isClosed } = await exchange(engine.mqttPort, random, bytes, options.closedMsMax);
    const fault = isClosed ? faultOf(received) : `the connection is open ${options.closedMsMax} ms after its end`;
    if (fault !== '') findings.push(`stream ${n}: ${fault}\n${reproduction(engine, bytes)}`);
    ends.add(received.length === 0 ? 'closed without an answer' : `CONNACK ${received[3] ?? 'cut short'}`);
  };
  const startedAt = performance.now();
  await runCases(options, attackers, one, () => findings.length >= findingsMax);
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(1);
  await watch.stop();
  const neighbours = `neighbours: ${watch.acknowledged} messages, the slowest ${watch.servedMs.toFixed(0)} ms`;
  return { summary: `${options.cases} streams in ${seconds} s: ${ends}; ${neighbours}`, findings };
}

/** Devices, of which two may speak for others. */
async function attackingDevices({ api }: Engine): Promise<string[]> {
  const devices = await Promise.all(Array.from({ length: 6 }, (_, n) => api.createDevice(`mqtt-fuzz-${n}`)));
  for (const { id } of devices.slice(-2)) {
    const device = (await (await api.send('GET', `/api/device/${id}`)).json()) as object;
    const { status } = await api.send('POST', '/api/device', { ...device, additionalInfo: { gateway: true } });
    if (status !== 200) throw new Error(`the device ${id} was not made a gateway: ${status}`);
  }
  return devices.map(({ token }) => token);
}

interface Exchange {
  received: Buffer;
  isClosed: boolean;
}

async function exchange(port: number, random: Random, bytes: Buffer, closedMsMax: number): Promise<Exchange> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  const received: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => received.push(chunk));
  // A reset is an end, too.
  socket.on('error', () => {});
  const closed = once(socket, 'close').catch(() => {});
  const pieceBytes = random.next() < 0.5 ? bytes.length : 1 + random.below(bytes.length);
  const linger = random.next() < 0.5 ? 20 + random.below(60) : 0;
  for (let at = 0; at < bytes.length && !socket.destroyed; at += pieceBytes) {
    socket.write(bytes.subarray(at, at + pieceBytes));
    await sleep(0);
  }
  if (linger > 0) await Promise.race([closed, sleep(linger)]);
  socket.end();
  const isClosed = await Promise.race([closed.then(() => true), sleep(closedMsMax, false, { ref: false })]);
  socket.destroy();
  return { received: Buffer.concat(received), isClosed };
}

const connack = 2;
/** CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT. */
const sentByServers = new Set([connack, 3, 4, 5, 6, 7, 9, 11, 13, 14]);

/** What is wrong with the bytes that the engine sent. Their last packet may be cut, because the client has left. */
function faultOf(received: Buffer): string {
  for (let at = 0, n = 0; at < received.length; n += 1) {
    const type = received[at]! >> 4;
    if (!sentByServers.has(type)) return `packet ${n} of the answer has the type ${type}`;
    if ((n === 0) !== (type === connack)) return `packet ${n} of the answer has the type ${type}`;
    let [length, shift, size] = [0, 0, 1];
    for (let more = true; more; size += 1, shift += 7) {
      const byte = received[at + size];
      if (byte === undefined) return '';
      if (size > 4) return `packet ${n} of the answer has no length`;
      length |= (byte & 0x7f) << shift;
      more = byte >= 0x80;
    }
    at += size + length;
  }
  return '';
}

function reproduction({ mqttPort }: Engine, bytes: Buffer): string {
  return `  printf ${bytes.toString('hex')} | xxd -r -p | nc -q 1 127.0.0.1 ${mqttPort}`;
}
