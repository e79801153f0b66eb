/**
 * `npm run doctor [-- --token TOKEN] [--url URL]`: checks settings, machine, disk, stores, ports and, when the instance
 * runs, a data point on its path through the instance. Each line is ok, warning or fault and says what to do; the exit
 * code is 1 after a fault. Changes nothing but one data point of the device whose token it uses.
 */
import { execFile } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { availableParallelism, release } from 'node:os';
import { dirname, resolve } from 'node:path';
import { promisify } from 'node:util';
import { findFirstDevice } from './admin/seed.ts';
import { parseWords, printLine, runCommand } from './base/command.ts';
import { counted } from './base/counted.ts';
import { causeMessageOf, messageOf, StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { type Config, type ConfigReading, readConfig } from './base/settings/config.ts';
import { describeUnknown } from './base/settings/setting-names.ts';
import { usableMemoryBytes } from './base/usable-memory.ts';
import { ownVersion } from './base/version.ts';
import { checkConfig } from './instance/host/config-check.ts';
import { type Finding, judgeMachine, readMachine } from './instance/host/machine.ts';
import { checkPlatform } from './instance/host/platform.ts';
import { portsOf, probePort } from './instance/host/ports.ts';
import { openPostgresOf, openShardsOf } from './instance/stores/engines.ts';
import { readShardMap } from './instance/stores/shard-map-store.ts';
import { judgeDiskTest, testDisk } from './support/disk-test.ts';
import { checkHosts } from './support/hosts-check.ts';
import { roundTrip } from './support/round-trip.ts';
import {
  findInstance,
  mayFindInstance,
  otherSettings,
  ownUrl,
  primaryLives,
  type RunningInstance,
} from './support/running-instance.ts';
import { checkClickHouse, checkPostgres, checkRedis, checkStreams } from './support/store-check.ts';

const usage = 'usage: npm run doctor -- [--token TOKEN of a device] [--url http://HOST:PORT of an instance]';
const diskTestMs = 2_000;
const log = createLog('error', 'doctor');
const counts = { ok: 0, warning: 0, fault: 0 };

interface Options {
  token?: string | undefined;
  url?: string | undefined;
}

async function run(words: string[]): Promise<void> {
  const { options, others } = parseWords(words, ['token', 'url'], usage);
  if (others.length > 0) throw new StartError(usage);
  report({ subject: 'version', level: 'ok', says: `Millrace ${ownVersion()}.` });
  attempt('platform', platformText, checkPlatform);
  const reading = readConfig();
  const config = checkSettings(reading);
  if (config) await checkRest(config, reading, { ...options, url: options.url?.replace(/\/$/, '') });
  else printLine('Correct the settings first: the other checks depend on them.');
  const { ok, warning, fault } = counts;
  printLine(`${ok} ok, ${counted(warning, 'warning')}, ${counted(fault, 'fault')}`);
  if (fault > 0) process.exitCode = 1;
}

async function checkRest(config: Config, reading: ConfigReading, options: Options): Promise<void> {
  const workers = config.workers || availableParallelism();
  const running = await findInstance(config);
  checkInstance(config, reading, running);
  const dir = checkDirectory(config);
  if (dir !== undefined) {
    const machine = readMachine(dir);
    machine.clock.synchronized ??= await synchronizedClock();
    for (const finding of judgeMachine(machine, config, workers)) report(finding);
    await checkDisk(dir);
  }
  // The embedded stores of an instance that starts just now may answer or not.
  const isRunning = running !== undefined;
  for (const finding of await checkClickHouse(config, isRunning, log)) report(finding);
  report(await checkPostgres(config, workers, isRunning, log));
  for (const finding of await checkRedis(config)) report(finding);
  for (const finding of await checkStreams(config, isRunning, log)) report(finding);
  for (const finding of await checkHosts(config, log)) report(finding);
  if (isRunning) await checkService(config, running, options);
  else await checkWithoutInstance(config, options);
}

/** Returns the settings when they are complete. */
function checkSettings({ values, settings, faults, unknown }: ConfigReading): Config | undefined {
  const subject = 'settings';
  const level = values['strict'] === true ? 'fault' : 'warning';
  for (const name of unknown) report({ subject, level, says: describeUnknown(name) });
  for (const says of faults) report({ subject, level: 'fault', says });
  if (faults.length > 0) return undefined;
  const changed = settings.filter(({ from }) => from !== 'default').length;
  const text = `${settings.length} settings, ${changed} of them not from the defaults (npm run config -- changed).`;
  attempt(
    subject,
    () => text,
    () => checkConfig(values as Config),
  );
  return values as Config;
}

function checkInstance(config: Config, { settings }: ConfigReading, running: RunningInstance | undefined): void {
  const subject = 'instance';
  const dir = resolve(config.data.dir);
  if (!running && !mayFindInstance(config)) {
    const says = `This user may not read ${dir}, so an instance there is not found: call this as the user that runs Millrace.`;
    report({ subject, level: 'warning', says });
    return;
  }
  if (!running) {
    const state = primaryLives(config) ? 'starts or stops just now' : 'is not running';
    report({ subject, level: 'ok', says: `The instance of ${dir} ${state}.` });
    return;
  }
  if (running.version !== ownVersion()) {
    const says = `The instance of ${dir} runs version ${running.version}; this is ${ownVersion()}: restart it after the update.`;
    report({ subject, level: 'warning', says });
  } else {
    report({ subject, level: 'ok', says: `The instance of ${dir} runs version ${running.version}.` });
  }
  const other = otherSettings(settings, running.config);
  if (other.length === 0) return;
  const names = `${other.slice(0, 10).join(', ')}${other.length > 10 ? ', …' : ''}`;
  report({
    subject,
    level: 'warning',
    says: `It runs with other values of ${names}: restart it, or use its environment here.`,
  });
}

/** Returns the data directory, or the directory in which the first start will make it. */
function checkDirectory(config: Config): string | undefined {
  const subject = 'data directory';
  const wanted = resolve(config.data.dir);
  let dir = wanted;
  while (!existsSync(dir)) dir = dirname(dir);
  try {
    accessSync(dir, constants.W_OK | constants.X_OK);
    const says = dir === wanted ? `${dir} can be written.` : `${wanted} is made by the first start.`;
    report({ subject, level: 'ok', says });
    return dir;
  } catch (error) {
    const says = `${wanted} (DATA_DIR) cannot be written: ${messageOf(error)}. Name a directory that this user can write.`;
    report({ subject, level: 'fault', says });
    return undefined;
  }
}

async function checkDisk(dir: string): Promise<void> {
  try {
    report(judgeDiskTest(await testDisk(dir, diskTestMs)));
  } catch (error) {
    const says = `A synced write to ${dir} fails: ${messageOf(error)}. Repair or change the disk, or set DATA_DIR.`;
    report({ subject: 'disk sync', level: 'fault', says });
  }
}

async function checkService(config: Config, running: RunningInstance, options: Options): Promise<void> {
  const url = options.url ?? running.url;
  const ports = portsOf(running.config).map(({ port }) => port);
  report({ subject: 'ports', level: 'ok', says: `${ports.join(', ')} belong to the running instance.` });
  await checkReadiness(url);
  await checkRoundTrip(config, url, options.token);
}

async function checkWithoutInstance(config: Config, { url, token }: Options): Promise<void> {
  if (url === undefined && primaryLives(config)) {
    const ports = portsOf(config).map(({ port }) => port);
    const says = `${ports.join(', ')} belong to the instance, which starts or stops just now.`;
    report({ subject: 'ports', level: 'ok', says });
    await checkReadiness(ownUrl(config));
    return;
  }
  if (url === undefined) {
    const subject = 'ports';
    const own = portsOf(config);
    const taken = (await Promise.allSettled(own.map(probePort))).filter((probe) => probe.status === 'rejected');
    for (const { reason } of taken) report({ subject, level: 'fault', says: messageOf(reason) });
    if (taken.length === 0) {
      report({ subject, level: 'ok', says: `${own.map(({ port }) => port).join(', ')} are free.` });
    }
    const says = 'No instance was found on this DATA_DIR: start it and call this again, or give --url and --token.';
    report({ subject: 'round trip', level: 'ok', says });
    return;
  }
  await checkReadiness(url);
  await checkRoundTrip(config, url, token);
}

async function checkReadiness(url: string): Promise<void> {
  const subject = 'readiness';
  try {
    const response = await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(5_000) });
    const { status, parts, reasons = [] } = (await response.json()) as Readiness;
    const down = Object.entries(parts ?? {}).flatMap(([part, state]) => (state === 'up' ? [] : [`${part} ${state}`]));
    const state = down.length === 0 ? status : `${status} (${down.join(', ')})`;
    const why = reasons.map((reason) => (reason.endsWith('.') ? reason : `${reason}.`)).join(' ');
    const says = `${url}/readyz answers ${response.status} ${state}${why === '' ? '.' : `: ${why}`}`;
    const level = !response.ok ? 'fault' : status === 'ready' ? 'ok' : 'warning';
    report({ subject, level, says });
  } catch (error) {
    report({ subject, level: 'fault', says: `${url}/readyz does not answer: ${causeMessageOf(error)}.` });
  }
}

interface Readiness {
  status: string;
  parts?: Record<string, string>;
  reasons?: string[];
}

async function checkRoundTrip(config: Config, url: string, given: string | undefined): Promise<void> {
  const postgres = openPostgresOf(config, log);
  const shards = openShardsOf(config, log);
  try {
    let token = given;
    try {
      if (shards.isDivided) shards.map = await readShardMap(postgres);
      token ??= (await findFirstDevice(postgres))?.token;
    } catch {
      const says =
        'The demo device is not known, because PostgreSQL does not answer: give the token of a device with --token.';
      report({ subject: 'round trip', level: 'warning', says });
      return;
    }
    if (token === undefined) {
      const says = 'The demo device is not found: give the token of a device with --token.';
      report({ subject: 'round trip', level: 'warning', says });
      return;
    }
    report(await roundTrip({ url, token, shards, postgres }));
  } finally {
    await Promise.all([postgres.close(), shards.close()]);
  }
}

/** Undefined where systemd does not answer, as in most containers. */
async function synchronizedClock(): Promise<boolean | undefined> {
  try {
    const args = ['show', '--property=NTPSynchronized', '--value'];
    const { stdout } = await promisify(execFile)('timedatectl', args, { timeout: 2_000 });
    return stdout.trim() === 'yes' ? true : stdout.trim() === 'no' ? false : undefined;
  } catch {
    return undefined;
  }
}

function platformText(): string {
  const memory = Math.round(usableMemoryBytes() / 1024 ** 3);
  return `Node ${process.version}, Linux ${release()} ${process.arch}, ${availableParallelism()} processors, ${memory} GiB.`;
}

/** Reports the text, or the error as a fault. */
function attempt(subject: string, text: () => string, check: () => unknown): void {
  try {
    check();
    report({ subject, level: 'ok', says: text() });
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    report({ subject, level: 'fault', says: error.message });
  }
}

function report({ subject, level, says }: Finding): void {
  counts[level] += 1;
  printLine(`${level.padEnd(8)} ${subject.padEnd(16)} ${says}`);
}

runCommand(run);
