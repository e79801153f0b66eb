/** An engine with one package that many devices have, fresh from a start: nothing of the upload is in its memory. */
import { randomBytes } from 'node:crypto';
import { type Engine, startEngine } from '../test/harness/engine.ts';

interface FirmwareForDevices {
  engine: Engine;
  /** Path and query with which each device requests its file. */
  paths: string[];
  /** Returns the reads of pieces from PostgreSQL so far, of all workers. */
  pieceLoads(): Promise<number>;
}

export async function startWithFirmware(
  workers: number,
  fileBytes: number,
  deviceCount: number,
): Promise<FirmwareForDevices> {
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  const firmware = await makePackage(engine, fileBytes);
  const paths: string[] = [];
  const { title, version } = firmware;
  const query = new URLSearchParams({ title, version });
  for (let n = 0; n < deviceCount; n += 1) {
    const token = `firmware${String(n).padStart(12, '0')}`;
    const device = { name: `firmware-${n}`, firmwareId: firmware.id };
    await checked(await engine.api.send('POST', `/api/device?accessToken=${token}`, device));
    paths.push(`/api/v1/${token}/firmware?${query}`);
  }
  await engine.restart();
  const pieceLoads = async () => {
    const text = await engine.api.metrics();
    return Number(/^ota_piece_loads_total (\d+)/m.exec(text)?.[1] ?? Number.NaN);
  };
  return { engine, paths, pieceLoads };
}

interface Package {
  id: { id: string };
  title: string;
  version: string;
}

async function makePackage(engine: Engine, fileBytes: number): Promise<Package> {
  const described = { type: 'FIRMWARE', title: 'pumpfw', version: '2.10' };
  const made = (await checked(await engine.api.send('POST', '/api/otaPackage', described))) as Package;
  const form = new FormData();
  form.set('file', new Blob([randomBytes(fileBytes)]), 'pump.bin');
  const uploaded = await fetch(`${engine.api.http}/api/otaPackage/${made.id.id}?checksumAlgorithm=SHA256`, {
    method: 'POST',
    headers: { 'x-authorization': `Bearer ${await engine.api.adminToken()}` },
    body: form,
  });
  await checked(uploaded);
  return made;
}

async function checked(response: Response): Promise<unknown> {
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${response.url} answered ${response.status}: ${text}`);
  return JSON.parse(text);
}
