/**
 * Parts of a worker alone, without an engine: decoding, the journal on this disk, steps whose cost must not grow, the
 * table of known devices.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { benchDecode, type DecodeFigure } from '../micro/decode.ts';
import { benchGrowth, type GrowthFigure } from '../micro/growth.ts';
import { benchBacklog, benchJournal } from '../micro/journal.ts';
import { benchKnownDevices } from '../micro/known-devices.ts';
import { measuring, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const backlogBytes = 250e6;

export async function runMicro(settings: BenchSettings): Promise<boolean> {
  const decode: DecodeFigure[] = [];
  measuring('decode', () => decode);
  await benchDecode(decode);
  table(
    ['message', 'bytes', 'decode ns', 'encode ns', 'JSON.parse ns', 'ratio'],
    decode.map((each) => [each.message, each.bytes, each.decodeNs, each.encodeNs, each.parseNs, each.ratio]),
  );
  const journal = await benchJournal();
  say('');
  table(
    ['frame bytes', 'shipper', 'commits/s', 'MB/s', 'p50 ms', 'p99 ms', 'CPU µs'],
    journal.map((each) => [
      each.frameBytes,
      each.shipping ? 'yes' : 'no',
      each.commitsPerSecond,
      each.megabytesPerSecond,
      each.p50Ms,
      each.p99Ms,
      each.cpuMicrosPerCommit,
    ]),
  );
  const backlog = await benchBacklog(backlogBytes);
  say(
    `\na backlog of ${backlogBytes / 1e6} MB: opened in ${backlog.openMs} ms, ${backlog.readMegabytesPerSecond} MB/s read\n`,
  );
  const growth: GrowthFigure[] = [];
  measuring('growth', () => growth);
  await benchGrowth(growth);
  const targets = new Targets();
  table(
    ['step', 'few', 'many', 'ms of few', 'ms of many', 'ratio', 'target'],
    growth.map((each) => [
      ...[each.step, each.few, each.many, each.fewMs, each.manyMs, each.ratio],
      targets.atMost(`${each.step}: cost of many / few`, each.ratio, each.ratioMax, '')
        ? `at most ${each.ratioMax}`
        : `ABOVE ${each.ratioMax}`,
    ]),
  );
  say('');
  setFlagsFromString('--expose-gc');
  globalThis.gc = runInNewContext('gc') as NodeJS.GCFunction;
  const known = await benchKnownDevices();
  table(
    ['known devices', 'bytes each', 'recent ns', 'any ns', 'longest add ms', 'longest lookup ms'],
    [[known.devices, known.bytesPerDevice, known.recentNs, known.randomNs, known.addMsMax, known.lookupMsMax]],
  );
  say('');
  const holds = targets.tell();
  writeResult('micro', settings, { decode, journal, backlog, growth, known, missed: targets.missed });
  return holds;
}
