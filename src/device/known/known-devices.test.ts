/**
 * The file of known devices: its answers after changes, crashes, damage and a change of the database. On a simulated
 * disk.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { beforeEach, expect, test, vi } from 'vitest';
import { SimDisk } from '../../../test/crash/sim-disk.ts';
import { FakeDeviceStore, profileId, tenantId } from '../../../test/harness/fake-device-store.ts';
import { Random } from '../../../test/harness/random.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { Metrics } from '../../base/metrics/metrics.ts';
import type { OpenMode } from '../../journal/disk.ts';
import { mqttBasicCredentials, tokenCredentials } from '../model/credentials.ts';
import type { LoggedChange } from '../sql/credential-log-store.ts';
import { KnownDevices } from './known-devices.ts';
import { headerBytes, recordBytesMax } from './known-devices-file.ts';
import { KnownDevicesWriter } from './known-devices-writer.ts';

const path = '/data/known/devices';
const events: string[] = [];
const say = (event: string) => events.push(event);
const log: Log = { debug: () => {}, info: say, warn: say, error: say };
const time = { now: 1_800_000_000_000, monotonic: 0 };
const clock = { now: () => time.now, monotonic: () => time.monotonic };
let store: FakeDeviceStore;
let disk: SimDisk;

beforeEach(() => {
  events.length = 0;
  store = new FakeDeviceStore();
  disk = new SimDisk();
  for (const [n, token] of ['one', 'two', 'three'].entries()) store.save(tokenCredentials(token), n + 1);
});

function pass(ms: number): void {
  time.now += ms;
  time.monotonic += ms;
}

function writerOn(on: SimDisk, growthBytes = limits.knownGrowthBytes, aheadMax?: number): KnownDevicesWriter {
  return new KnownDevicesWriter({
    path,
    postgres: store,
    source: async () => store.source,
    clock,
    log,
    metrics: new Metrics(),
    disk: on,
    growthBytes,
    ...(aheadMax === undefined ? {} : { aheadMax }),
  });
}

/** Starts an instance, runs one round of its writer and ends the instance. */
async function write(on = disk, growthBytes = limits.knownGrowthBytes): Promise<void> {
  const writer = writerOn(on, growthBytes);
  writer.start();
  await writer.stop();
}

function reader(on = disk): KnownDevices {
  return new KnownDevices({ path, clock, log, metrics: new Metrics(), disk: on });
}

async function numbers(known: KnownDevices, ...tokens: string[]): Promise<(number | undefined)[]> {
  pass(limits.knownCheckMs);
  const found = await known.tokens(tokens);
  return tokens.map((token) => found.get(token)?.number);
}

test('every device is found by its token with the data of the store; other tokens are not', async () => {
  store.save(tokenCredentials('hub'), 9, {
    isGateway: true,
    isConfined: true,
    customerId: randomUUID(),
    name: 'Großer Hub',
    version: 7,
  });
  await write();
  const known = reader();
  expect(await numbers(known, 'one', 'three', 'nobody')).toEqual([1, 3, undefined]);
  const {
    credentialsId: _,
    type,
    value,
    credentialsVersion,
    transportType,
    profileVersion,
    ...row
  } = store.rows.get('hub')!;
  expect((await known.tokens(['hub'])).get('hub')).toEqual(row);
  expect(store.scans).toBe(1);
});

test('the file holds no token, no user name and no password', async () => {
  store.save(mqttBasicCredentials({ clientId: 'pump', userName: 'miller', password: 'stone-42' }), 5);
  await write();
  const text = await contents();
  for (const secret of ['one', 'two', 'pump', 'miller', 'stone-42']) expect(text.includes(secret)).toBe(false);
});

test('a changed, a deleted and a renamed device are followed by a file that is not made again', async () => {
  await write();
  const known = reader();
  expect(await numbers(known, 'one', 'two')).toEqual([1, 2]);
  store.remove('one');
  const { id } = store.rows.get('two')!;
  store.remove('two');
  store.save(tokenCredentials('two-new'), 2, { id });
  store.save(tokenCredentials('three'), 3, { name: 'renamed' });
  await write();
  expect(await numbers(known, 'one', 'two', 'two-new', 'three')).toEqual([undefined, undefined, 2, 3]);
  const names = await known.names(tenantId, ['device 1', 'device 2', 'device 3', 'renamed']);
  expect([...names].map(([name, { number }]) => [name, number])).toEqual([
    ['device 2', 2],
    ['renamed', 3],
  ]);
  expect((await known.names(randomUUID(), ['renamed'])).size).toBe(0);
  expect(store.scans).toBe(1);
});

test('logins by user name, client id and password are distinguished from wrong ones, and profiles are followed', async () => {
  const names = { clientId: 'pump', userName: 'miller', password: 'stone-42' };
  const credentials = mqttBasicCredentials(names);
  store.save(credentials, 5);
  await write();
  pass(limits.knownProfilesCheckMs);
  const transportConfiguration = { type: 'MQTT', deviceTelemetryTopic: 'own/telemetry' };
  store.profiles = [{ id: profileId, version: 2, transportType: 'MQTT', data: { transportConfiguration } }];
  await write();
  const login = (await reader().logins([credentials.credentialsId])).get(credentials.credentialsId)!;
  expect(login.device).toMatchObject({ type: 'MQTT_BASIC', transportType: 'MQTT' });
  expect(login.topics?.telemetry).toBe('own/telemetry');
  expect([login.isNamed('pump', 'miller'), login.isNamed('pump', null), login.isNamed('pum', 'pmiller')]).toEqual([
    true,
    false,
    false,
  ]);
  expect(login.isPassword(Buffer.from('stone-42'))).toBe(true);
  expect(login.isPassword(Buffer.from('stone-43'))).toBe(false);
  expect((await reader().tokens([credentials.credentialsId])).size).toBe(0);
});

test('a crash at any moment leaves a file with every change before its last round', async () => {
  for (let seed = 0; seed < 120; seed += 1) {
    const random = new Random(seed);
    store = new FakeDeviceStore();
    store.save(tokenCredentials('old'), 1);
    const first = new SimDisk();
    await write(first);
    store.remove('old');
    store.save(tokenCredentials('kept'), 2);
    await write(first);
    store.save(tokenCredentials('late'), 3);
    first.crashAt = first.operations + (seed % 12);
    // An operation on a crashed disk never ends.
    await Promise.race([write(first), new Promise((resolve) => setTimeout(resolve, 5))]);
    const after = first.crash(random);
    expect((await numbers(reader(after), 'old', 'kept')).map(String), `seed ${seed}`).toEqual(['undefined', '2']);
    await write(after);
    expect(await numbers(reader(after), 'old', 'kept', 'late'), `seed ${seed}`).toEqual([undefined, 2, 3]);
  }
});

test('a file that is damaged before its end answers nothing, and is made again when the store answers', async () => {
  await write();
  for (let round = 0; round < 12; round += 1) {
    for (let n = 0; n < 500; n += 1) store.save(tokenCredentials(`many-${n}`), 10 + n, { name: 'x'.repeat(200) });
    await write();
  }
  const file = await disk.open(path, 'write');
  expect(await file.size()).toBeGreaterThan(1.5 * 1024 * 1024);
  await file.write([Buffer.from([1, 2, 3, 4])], headerBytes + 100);
  await file.sync();
  expect(await numbers(reader(), 'one')).toEqual([undefined]);
  expect(events).toContain('known_devices_file_damaged');
  const { scans } = store;
  await write();
  expect(store.scans).toBeGreaterThan(scans);
  expect(await numbers(reader(), 'one', 'many-7')).toEqual([1, 17]);
});

test('a small file that is damaged before its last block answers nothing', async () => {
  await write();
  const ends = [await size()];
  for (const n of [4, 5]) {
    store.save(tokenCredentials(`token-${n}`), n);
    await write();
    ends.push(await size());
  }
  store.remove('one');
  await write();
  // In the scan, in the length and in the records of each block that was appended before the last one.
  for (const at of [headerBytes + 8, ends[0]!, ends[0]! + 40, ends[1]! + 2, ends[1]! + 100]) {
    const file = await disk.open(path, 'write');
    const byte = Buffer.alloc(1);
    await file.read(byte, at);
    await file.write([Buffer.from([byte[0]! ^ 4])], at);
    await file.sync();
    store.isAway = true;
    // A start of the primary without PostgreSQL removes nothing that revokes credentials.
    await write();
    expect(await numbers(reader(), 'one', 'two'), `damaged at ${at}`).toEqual([undefined, undefined]);
    store.isAway = false;
    await file.write([byte], at);
    await file.sync();
    expect(await numbers(reader(), 'one', 'two')).toEqual([undefined, 2]);
  }
});

test('a file that may not be opened is replaced by a new one', async () => {
  await write();
  let refused = 0;
  disk.fault = (operation, name) => {
    if (operation !== 'open' || name !== path) return undefined;
    refused += 1;
    return 'EACCES';
  };
  store.remove('one');
  await write();
  disk.fault = () => undefined;
  expect([refused, store.scans]).toEqual([1, 2]);
  expect(await numbers(reader(), 'one', 'two')).toEqual([undefined, 2]);
});

test('a file that could be read in part answers nothing: its other part may revoke credentials', async () => {
  await write();
  for (let n = 0; n < 10_000; n += 1) store.save(tokenCredentials(`many-${n}`), 10 + n, { name: 'x'.repeat(200) });
  await write();
  store.remove('one');
  await write();
  const known = reader();
  const isFurtherRead = (from: number, to: number) => to - from > recordBytesMax && from > headerBytes;
  let failed = 0;
  disk.fault = (operation, _, from = 0, to = 0) => {
    if (operation !== 'read' || !isFurtherRead(from, to)) return undefined;
    failed += 1;
    return 'EIO';
  };
  expect(await numbers(known, 'one')).toEqual([undefined]);
  expect(failed).toBe(1);
  expect((await known.tokens(['one'])).size).toBe(0);
  disk.fault = () => undefined;
  expect(await numbers(known, 'one', 'two')).toEqual([undefined, 2]);
});

test('another database at the same address, an older one, a promoted standby, and a pruned log: all devices are read again', async () => {
  await write();
  const again = async (change: () => void, expected: number) => {
    change();
    await write();
    expect(store.scans).toBe(expected);
    expect(await numbers(reader(), 'one')).toEqual([1]);
  };
  await again(() => {
    store.source = randomBytes(16);
  }, 2);
  await again(() => {
    store.settled -= 50;
  }, 3);
  await again(() => {
    store.timeline = '0000000A';
  }, 4);
  await again(() => pass(limits.credentialChangesKeptMs), 5);
  await again(() => pass(limits.credentialChangesKeptMs / 4), 5);
});

test('a database that went back and has passed the cursor of the file again: all devices are read again', async () => {
  await write();
  const goBack = store.keep();
  store.save(tokenCredentials('lost'), 4);
  await write();
  expect(await numbers(reader(), 'lost')).toEqual([4]);
  goBack();
  store.save(tokenCredentials('later'), 5);
  await write();
  expect(store.scans).toBe(2);
  expect(await numbers(reader(), 'one', 'lost', 'later')).toEqual([1, undefined, 5]);
});

test('a file that lacks nothing of the mark but is of another table of the log is made again', async () => {
  await write();
  store.timeline = '00000001/17000';
  store.settled += 300;
  await write();
  expect(store.scans).toBe(2);
});

test('after a standby took over, a file of which the database has the mark answers until there is a new one', async () => {
  await write();
  const known = reader();
  store.timeline = '00000002/16384';
  disk.fault = (operation) => (operation === 'write' ? 'ENOSPC' : undefined);
  await write();
  expect(await numbers(known, 'one')).toEqual([1]);
  disk.fault = () => undefined;
  await write();
  expect(store.scans).toBe(2);
  expect(await numbers(known, 'one')).toEqual([1]);
});

test('a file of a lost history answers nothing, also to a worker that has read it, before there is a new one', async () => {
  await write();
  const goBack = store.keep();
  store.save(tokenCredentials('lost'), 4);
  await write();
  const known = reader();
  expect(await numbers(known, 'one', 'lost')).toEqual([1, 4]);
  goBack();
  disk.fault = (operation) => (operation === 'write' ? 'ENOSPC' : undefined);
  await write();
  expect(await numbers(known, 'one', 'lost')).toEqual([undefined, undefined]);
  disk.fault = () => undefined;
  await write();
  expect(await numbers(known, 'one', 'lost')).toEqual([1, undefined]);
});

test('the mark of a block that was not appended is no proof of a later block', async () => {
  await write();
  store.save(tokenCredentials('four'), 4);
  disk.fault = (operation) => (operation === 'write' ? 'ENOSPC' : undefined);
  await write();
  const goBack = store.keep();
  disk.fault = () => undefined;
  store.save(tokenCredentials('lost'), 5);
  await write();
  expect(store.scans).toBe(1);
  goBack();
  store.save(tokenCredentials('later'), 6);
  await write();
  expect(store.scans).toBe(2);
  expect(await numbers(reader(), 'four', 'lost', 'later')).toEqual([4, undefined, 6]);
});

test('a file of version 1 answers while the store does not, and is made again when the store answers', async () => {
  await write();
  const file = await disk.open(path, 'write');
  const header = Buffer.alloc(headerBytes);
  await file.read(header, 0);
  header.write('MRKNOWN1');
  header.writeUInt32LE(crc32(header.subarray(0, 56)), 56);
  await file.write([header], 0);
  await file.sync();
  store.marks.clear();
  expect(await numbers(reader(), 'one')).toEqual([1]);
  await write();
  expect(store.scans).toBe(2);
});

test('a change that is committed while a file is made is in that file before it answers', async () => {
  await write();
  const credentials = mqttBasicCredentials({ clientId: 'pump', userName: 'miller', password: 'stone-42' });
  store.save(credentials, 5);
  // Another table of the log: all devices are read again.
  store.settled -= 50;
  const transportConfiguration = { type: 'MQTT', deviceTelemetryTopic: 'own/telemetry' };
  const query = store.query.bind(store);
  store.query = async (text, values) => {
    const rows = await query(text, values);
    // The scan has read the former row of this device.
    if (text.includes('k.id > $1') && store.rows.has('one')) {
      store.remove('one');
      store.profiles = [{ id: profileId, version: 2, transportType: 'MQTT', data: { transportConfiguration } }];
    }
    return rows;
  };
  disk.fault = (operation) => {
    if (operation === 'rename') store.isAway = true;
    return undefined;
  };
  await write();
  expect([store.isAway, store.scans]).toEqual([true, 2]);
  expect(await numbers(reader(), 'one', 'two')).toEqual([undefined, 2]);
  const login = (await reader().logins([credentials.credentialsId])).get(credentials.credentialsId)!;
  expect(login.topics?.telemetry).toBe('own/telemetry');
});

/** Returns a query of the store that fails, as all later ones, when it looks up this token. */
function lookUpFails(token: string): FakeDeviceStore['query'] {
  const query = store.query.bind(store);
  return async (text, values) => {
    if (isLookUp(text) && values![0].includes(token)) store.isAway = true;
    return await query(text, values);
  };
}

function isLookUp(text: string): boolean {
  return text.includes('where k.credentials_id = any') && text.includes('p.transport_type');
}

test('a revocation and a new password do not wait for the many devices that were made before', async () => {
  const basic = (password: string) => mqttBasicCredentials({ clientId: 'pump', userName: 'miller', password });
  store.save(basic('stone-42'), 5);
  await write();
  for (let n = 0; n < limits.knownPageRows; n += 1) store.save(tokenCredentials(`new ${n}`), 10 + n);
  store.remove('one');
  store.save(basic('stone-43'), 5, { credentialsVersion: 2 });
  const query = store.query;
  store.query = lookUpFails('new 1');
  await write();
  expect(await numbers(reader(), 'one', 'two', 'new 1')).toEqual([undefined, 2, undefined]);
  const login = (await reader().logins([basic('').credentialsId])).get(basic('').credentialsId)!;
  expect(login.isPassword(Buffer.from('stone-43'))).toBe(true);
  store.query = query;
  store.isAway = false;
  await write();
  expect(await numbers(reader(), 'one', 'two', 'new 1')).toEqual([undefined, 2, 11]);
});

test('a token that another device got does not wait for the many devices that were made before', async () => {
  await write();
  for (let n = 0; n < limits.knownPageRows; n += 1) store.save(tokenCredentials(`new ${n}`), 10 + n);
  store.remove('one');
  store.save(tokenCredentials('one'), 9);
  store.query = lookUpFails('new 1');
  await write();
  expect(await numbers(reader(), 'one', 'new 1')).toEqual([9, undefined]);
});

test('a change that was written ahead, and one that is committed during a round, are written once', async () => {
  await write();
  const writer = writerOn(disk);
  for (let n = 0; n < 2 * limits.knownPageRows; n += 1) store.save(tokenCredentials(`new ${n}`), 10 + n);
  store.remove('one');
  const asked: string[] = [];
  let rounds = 0;
  const query = store.query.bind(store);
  store.query = async (text, values) => {
    if (text.includes('known_file where id')) rounds += 1;
    if (isLookUp(text)) {
      if (asked.length === 0) store.remove('two');
      asked.push(...values![0]);
    }
    return await query(text, values);
  };
  writer.start();
  await vi.waitFor(() => expect(rounds).toBe(2), 20_000);
  await writer.stop();
  expect(asked.length).toBe(2 * limits.knownPageRows + 2);
  expect(asked.slice(0, 1)).toEqual(['one']);
  expect(await numbers(reader(), 'one', 'two', 'new 1')).toEqual([undefined, undefined, 11]);
});

test.each([
  { aheadMax: limits.knownAheadMax, ahead: 3 * limits.knownPageRows },
  { aheadMax: limits.knownPageRows, ahead: limits.knownPageRows },
])('each change is written once when at most $aheadMax may go ahead', async ({ aheadMax, ahead }) => {
  await write();
  const logged = store.log.length;
  for (let n = 0; n < 3 * limits.knownPageRows; n += 1) store.save(tokenCredentials(`old ${n}`), 10 + n);
  // The devices were made long ago.
  store.log.splice(logged);
  for (let n = 0; n < 2 * limits.knownPageRows; n += 1) store.save(tokenCredentials(`new ${n}`), 10_000 + n);
  for (let n = 0; n < 3 * limits.knownPageRows; n += 1) store.remove(`old ${n}`);
  const asked: string[] = [];
  const query = store.query.bind(store);
  store.query = async (text, values) => {
    if (isLookUp(text)) {
      asked.push(...values![0]);
      // Each look-up takes long enough for another pass ahead, and meanwhile a token is revoked.
      pass(limits.knownAheadMs);
      const row = store.rows.get('one');
      if (row) store.remove('one');
    }
    return await query(text, values);
  };
  const writer = writerOn(disk, limits.knownGrowthBytes, aheadMax);
  writer.start();
  await vi.waitFor(() => expect(asked).toContain('one'), 20_000);
  await writer.stop();
  expect(asked.length).toBe(new Set(asked).size);
  expect(asked).toHaveLength(5 * limits.knownPageRows + 1);
  expect(asked.indexOf('new 0')).toBeGreaterThanOrEqual(ahead);
  expect(await numbers(reader(), 'one', 'new 1', 'old 1', 'old 2999')).toEqual([
    undefined,
    10_001,
    undefined,
    undefined,
  ]);
});

test('a round that fails goes on after the pages that it has written', async () => {
  await write();
  for (let n = 0; n < 3 * limits.knownPageRows; n += 1) store.save(tokenCredentials(`new ${n}`), 10 + n);
  const query = store.query;
  store.query = lookUpFails(`new ${2 * limits.knownPageRows}`);
  const writer = writerOn(disk);
  writer.start();
  await vi.waitFor(() => expect(store.isAway).toBe(true), 20_000);
  const asked: string[] = [];
  store.query = async (text, values) => {
    if (isLookUp(text)) asked.push(...values![0]);
    return await query.call(store, text, values);
  };
  store.isAway = false;
  await vi.waitFor(() => expect(asked).toContain('new 2999'), 20_000);
  await writer.stop();
  expect(asked).not.toContain('new 1');
  expect(await numbers(reader(), 'new 1', 'new 2999')).toEqual([11, 3009]);
});

test('a change that is committed while a round begins is not said to be in the file', async () => {
  await write();
  const known = reader();
  expect(await numbers(known, 'two')).toEqual([2]);
  store.remove('one');
  const query = store.query.bind(store);
  store.query = async (text, values) => {
    const rows = await query(text, values);
    if (text.includes('known_file where id')) {
      store.query = query;
      pass(5);
      store.remove('two');
      known.changed(2);
      pass(5);
    }
    return rows;
  };
  await write();
  expect(await numbers(known, 'one', 'two', 'three')).toEqual([undefined, undefined, 3]);
});

test('a new file whose directory cannot be synced is removed, and made again', async () => {
  disk.fault = (operation) => (operation === 'syncDirectory' ? 'EIO' : undefined);
  await write();
  expect(events).toContain('known_devices_unwritten');
  expect(await numbers(reader(), 'one')).toEqual([undefined]);
  disk.fault = () => undefined;
  await write();
  expect(await numbers(reader(), 'one')).toEqual([1]);
});

test('a file that has grown to twice its size is made again', async () => {
  await write();
  for (let round = 0; store.scans === 1; round += 1) {
    expect(round).toBeLessThan(20);
    for (let n = 0; n < 50; n += 1) store.save(tokenCredentials('one'), 1, { name: 'y'.repeat(250), version: n });
    store.save(tokenCredentials(`t${round}`), 9 + round);
    await write(disk, 2_000);
  }
  expect(await numbers(reader(), 'one', 't0')).toEqual([1, 9]);
  const file = await disk.open(path, 'read');
  expect(await file.size()).toBeLessThan(6_000);
});

test('while the store does not answer the file stays, and a full disk loses nothing that was in it', async () => {
  await write();
  store.isAway = true;
  await write();
  expect(events).not.toContain('known_devices_unwritten');
  expect(await numbers(reader(), 'one')).toEqual([1]);
  store.isAway = false;
  store.remove('one');
  disk.fault = (operation) => (operation === 'write' ? 'ENOSPC' : undefined);
  await write();
  expect(events).toContain('known_devices_unwritten');
  expect(await numbers(reader(), 'two')).toEqual([2]);
  disk.fault = () => undefined;
  await write();
  expect(await numbers(reader(), 'one', 'two')).toEqual([undefined, 2]);
  expect(store.scans).toBe(1);
});

test('a disk that is full while the file is made is named, and the devices are not read again each second', async () => {
  let rounds = 0;
  disk.fault = (operation, name) => {
    if (operation === 'open' && name === path) rounds += 1;
    return operation === 'write' && store.scans > 0 ? 'ENOSPC' : undefined;
  };
  const writer = writerOn(disk);
  writer.start();
  try {
    await expect.poll(() => rounds, { timeout: 10_000 }).toBeGreaterThan(2);
    expect(events.filter((event) => event === 'known_devices_unwritten')).toHaveLength(1);
    expect(store.scans).toBe(1);
    disk.fault = () => undefined;
    pass(limits.knownRebuildPauseMs);
    await expect.poll(() => events, { timeout: 10_000 }).toContain('known_devices_written_again');
  } finally {
    await writer.stop();
  }
  expect(await numbers(reader(), 'one')).toEqual([1]);
});

test('what was answered is doubted once when the store is back; too much of it means everything', async () => {
  await write();
  const known = reader();
  known.storeFailed();
  expect(known.isStoreUnavailable).toBe(true);
  await numbers(known, 'one', 'nobody');
  await known.names(tenantId, ['device 1', 'device 2']);
  const doubted = known.storeAnswers();
  expect(doubted).not.toBe('all');
  expect((doubted as LoggedChange[]).map(({ credentialsId, deviceNumber }) => [credentialsId, deviceNumber])).toEqual([
    ['one', 1],
    ['', 1],
    ['', 2],
  ]);
  expect([known.isStoreUnavailable, known.storeAnswers()]).toEqual([false, []]);
});

test('a device that changed after the file was written is not found until the file has the change', async () => {
  await write();
  const known = reader();
  known.storeFailed();
  const { id, name } = store.rows.get('one')!;
  known.changed(1);
  expect(await numbers(known, 'one', 'two')).toEqual([undefined, 2]);
  expect((await known.logins(['one', 'two'])).size).toBe(1);
  expect((await known.names(tenantId, [name])).size).toBe(0);
  store.save(tokenCredentials('one'), 1, { id, name: 'renamed' });
  await write();
  expect(await numbers(known, 'one', 'two')).toEqual([1, 2]);
});

test('a device whose change the file has is found although others changed within the same seconds', async () => {
  const known = reader();
  known.changed(1);
  pass(1_000);
  await write();
  known.changed(2);
  expect(await numbers(known, 'one', 'two')).toEqual([1, undefined]);
});

test('while the store answers, changes are forgotten after the time in which they are written', async () => {
  await write();
  const known = reader();
  // The log passes the changes on again after the file has them, and nothing else changes.
  for (const device of [1, 2]) known.changed(device);
  pass(limits.knownChangedMs);
  known.changed(2);
  expect(await numbers(known, 'one', 'two')).toEqual([undefined, undefined]);
  known.storeAnswers();
  expect(await numbers(known, 'one', 'two')).toEqual([1, undefined]);
});

test('while the store answers, changes of a clock that was set back are forgotten', async () => {
  await write();
  const known = reader();
  known.changed(1);
  pass(-3_600_000);
  known.storeAnswers();
  pass(3_600_000);
  expect(await numbers(known, 'one')).toEqual([1]);
});

test('a device that changed after the clock was set back is not found until the file has the change', async () => {
  await write();
  const known = reader();
  known.storeFailed();
  pass(-3_600_000);
  known.changed(1);
  expect(await numbers(known, 'one', 'two')).toEqual([undefined, 2]);
  await write();
  expect(await numbers(known, 'one', 'two')).toEqual([1, 2]);
});

test('the time of the file follows a clock that was set back, also without a change', async () => {
  const writer = writerOn(disk);
  writer.start();
  try {
    await expect.poll(() => events).toContain('known_devices_scanned');
    const before = await size();
    time.now -= 3_600_000;
    await expect.poll(size).toBeGreaterThan(before);
  } finally {
    await writer.stop();
  }
  const known = reader();
  pass(1_000);
  known.changed(2);
  pass(3_600_000);
  expect(await numbers(known, 'one', 'two')).toEqual([1, undefined]);
});

test('changes of any number of devices are remembered, and keep no other device out', async () => {
  await write();
  const known = reader();
  for (let n = 0; n < 300_000; n += 1) {
    known.changed(2 + n);
    if (n % 25_000 === 0) pass(limits.knownChangedMs);
  }
  expect(await numbers(known, 'one', 'two', 'three')).toEqual([1, undefined, undefined]);
  known.storeAnswers();
  expect(await numbers(known, 'one', 'two')).toEqual([1, 2]);
});

test('while the store answers, a device is found again although others change all the time', async () => {
  await write();
  const known = reader();
  known.changed(2);
  for (let ms = 0; ms < 10 * limits.knownChangedMs; ms += 100) {
    known.changed(100);
    if (ms % 1_000 === 0) known.storeAnswers();
    pass(100);
  }
  expect(await numbers(known, 'one', 'two')).toEqual([1, 2]);
});

test('more changes than are remembered: no device is found before the file is newer', async () => {
  await write();
  const known = reader();
  for (let n = 0; n <= limits.knownChangedPagesMax; n += 1) known.changed(32_768 * (n + 1));
  expect(await numbers(known, 'one')).toEqual([undefined]);
  store.save(tokenCredentials('four'), 4);
  await write();
  expect(await numbers(known, 'one', 'four')).toEqual([1, 4]);
});

test('a device is found while its record is written again, while the file is replaced, and without a free descriptor', async () => {
  await write();
  const known = reader(closing(disk));
  expect(await numbers(known, 'one')).toEqual([1]);
  const whileReading = async (change: () => Promise<unknown>) => {
    let begun = () => {};
    const began = new Promise<void>((resolve) => (begun = resolve));
    disk.fault = (operation, _, from = 0, to = 0) => {
      if (operation !== 'read' || to - from !== recordBytesMax) return undefined;
      disk.fault = () => undefined;
      begun();
      return 50;
    };
    const found = known.tokens(['one']);
    await began;
    await change();
    return (await found).get('one')?.number;
  };
  pass(limits.knownCheckMs);
  const written = await whileReading(async () => {
    store.save(tokenCredentials('one'), 1, { version: 2 });
    await write();
    await numbers(known, 'two');
  });
  expect(written).toBe(1);
  const replaced = await whileReading(async () => {
    store.settled -= 50;
    await write();
    await numbers(known, 'two');
  });
  expect(replaced).toBe(1);
  disk.fault = (operation) => (operation === 'open' ? 'EMFILE' : undefined);
  expect(await numbers(known, 'one')).toEqual([1]);
});

test('what was written after the store answered again is found at once when the store fails again', async () => {
  await write();
  const known = reader();
  expect(await numbers(known, 'one')).toEqual([1]);
  known.storeAnswers();
  store.save(tokenCredentials('new'), 9);
  await write();
  known.storeFailed();
  expect((await known.tokens(['new'])).get('new')?.number).toBe(9);
});

/** A disk whose files fail a read that ends after they were closed. */
function closing(sim: SimDisk): SimDisk {
  return Object.create(sim, {
    open: {
      value: async (name: string, mode: OpenMode) => {
        const file = await sim.open(name, mode);
        let closed = false;
        const read = async (buffer: Buffer, position: number) => {
          const bytes = await file.read(buffer, position);
          if (closed) throw new Error('EBADF');
          return bytes;
        };
        const close = async () => {
          closed = true;
        };
        return { read, close, size: () => file.size() };
      },
    },
  }) as SimDisk;
}

async function size(): Promise<number> {
  const file = await disk.open(path, 'read');
  return await file.size();
}

async function contents(): Promise<string> {
  const file = await disk.open(path, 'read');
  const bytes = Buffer.alloc(await file.size());
  await file.read(bytes, 0);
  return bytes.toString('latin1');
}
