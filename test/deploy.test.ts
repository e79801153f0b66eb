/**
 * No Docker runs here. The tests check that the Dockerfile and the files of docker compose name only known settings,
 * paths that answer, and ports and addresses that fit each other. `test/flow/slim-packages.test.ts` runs the packages
 * of the slim image.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { environmentNames } from '../src/base/settings/config.ts';
import { sharedEngine } from './harness/shared-engine.ts';

interface Service {
  image?: string;
  build?: { context: string; target: string };
  command?: string[];
  environment?: Record<string, string>;
  ports?: string[];
  volumes?: string[];
  networks?: Record<string, { ipv4_address: string }>;
  depends_on?: Record<string, { condition: string }> | string[];
  extends?: { file: string; service: string };
  stop_grace_period?: string;
}

interface Compose {
  services: Record<string, Service>;
  networks?: Record<string, { ipam: { config: { subnet: string }[] } }>;
  volumes: Record<string, unknown>;
}

const read = (path: string) => parse(readFileSync(path, 'utf8'), { merge: true }) as Compose;
const dockerfile = readFileSync('Dockerfile', 'utf8');
const single = read('docker-compose.yml');
const several = read('docker-compose.hosts.yml');
const files: [string, Compose][] = [
  ['docker-compose.yml', single],
  ['docker-compose.hosts.yml', several],
];
const defaults = readFileSync('config/default.yaml', 'utf8');

function defaultOf(name: string): string {
  return new RegExp(`\\$\\{${name}:([^}]*)\\}`).exec(defaults)![1]!;
}

/** Services that run the image of Millrace. */
function millraces({ services }: Compose): [string, Service][] {
  return Object.entries(services).filter(([, { image = '', build }]) => build || image.startsWith('millrace'));
}

function namesIn({ environment = {} }: Service): string[] {
  return Object.keys(environment);
}

describe('Dockerfile', () => {
  const stages = dockerfile.split(/^FROM /m).slice(1);
  const words = (instruction: string) => [...dockerfile.matchAll(new RegExp(`^${instruction} (.*)$`, 'gm'))];
  /** Returns the stage and all stages from which it is made. */
  const lineage = (name: string): string => {
    const stage = stages.find((each) => each.split('\n')[0]!.endsWith(` AS ${name}`));
    return stage === undefined ? '' : lineage(stage.split(' ')[0]!) + stage;
  };
  const images = ['slim', 'full'];

  test('builds and runs on a Node that gets fixes of security, and the image without a target is the full one', () => {
    const bases = stages
      .map((stage) => /^node:(\d+)-\S+-slim /.exec(stage)?.[1])
      .filter((major) => major !== undefined);
    expect(bases.length).toBeGreaterThan(1);
    expect(new Set(bases).size).toBe(1);
    expect(Number(bases[0])).toBeGreaterThanOrEqual(22);
    expect(stages.at(-1)).toMatch(/^\S+ AS full\n/);
  });

  test('every environment name is a known setting, and none is a secret', () => {
    const names = [...dockerfile.matchAll(/^(?:ENV|ARG)\s+(\w+)/gm)].map((match) => match[1]!);
    const known = environmentNames();
    expect(names.length).toBeGreaterThan(1);
    expect(names.filter((name) => name !== 'NODE_ENV' && !known.has(name))).toEqual([]);
    expect(names.filter((name) => /PASSWORD|SECRET|TOKEN|KEY|_URL/.test(name))).toEqual([]);
  });

  test.each(images)(
    '%s does not run as root, keeps its data in a volume, and stops by SIGTERM of an own init',
    (name) => {
      const text = lineage(name);
      expect([...text.matchAll(/^USER (.*)$/gm)].at(-1)![1]).toBe('1000:1000');
      expect(text).toMatch(/^VOLUME \["\/data"\]$/m);
      expect(text).toMatch(/^ENV DATA_DIR=\/data$/m);
      expect(text).toMatch(/^STOPSIGNAL SIGTERM$/m);
      expect(text).toMatch(/^ENTRYPOINT \["tini", "--"\]$/m);
      expect(text).toMatch(/^CMD \["node", "dist\/main\.js"\]$/m);
      for (const folder of ['node_modules', 'dist']) expect(text).toContain(`/app/${folder} ./${folder}`);
    },
  );

  test('instructions with commands have the exec form, but RUN', () => {
    for (const instruction of ['CMD', 'ENTRYPOINT']) {
      const found = words(instruction);
      expect(found.length, instruction).toBe(1);
      for (const [, form] of found) expect(JSON.parse(form!)).toBeInstanceOf(Array);
    }
  });

  test('the health check asks the port for operators, at a path that answers 200', async () => {
    const [, command] = /^HEALTHCHECK .*\\\n {2}CMD (.*)$/m.exec(dockerfile)!;
    const [node, flag, script] = JSON.parse(command!) as string[];
    expect([node, flag]).toEqual(['node', '-e']);
    expect(script).toContain(`process.env.MONITOR_BIND_PORT || ${defaultOf('MONITOR_BIND_PORT')}`);
    const env = { ...process.env, MONITOR_BIND_PORT: String(sharedEngine().address.monitorPort) };
    execFileSync(process.execPath, [flag!, script!], { env });
    expect(() =>
      execFileSync(process.execPath, [flag!, script!], { env: { ...env, MONITOR_BIND_PORT: '1' } }),
    ).toThrow();
  });

  test('exposes the default ports', () => {
    const ports = ['HTTP', 'MQTT', 'ANALYTICS', 'MONITOR'].map((door) => defaultOf(`${door}_BIND_PORT`));
    expect(words('EXPOSE').flatMap(([, list]) => list!.split(' '))).toEqual(ports);
  });

  test('copies only what the repository has', () => {
    const sources = words('COPY')
      .map(([, list]) => list!.split(' ').filter((word) => !word.startsWith('--chown')))
      .filter(([first]) => !first!.startsWith('--from'))
      .flatMap((list) => list.slice(0, -1));
    expect(sources.length).toBeGreaterThan(5);
    for (const source of sources) execFileSync('test', ['-e', source]);
  });
});

describe.each(files)('%s', (_, compose) => {
  test('every environment name of Millrace is a known setting', () => {
    const known = environmentNames();
    for (const [service, each] of millraces(compose)) {
      expect(namesIn(each).length, service).toBeGreaterThan(3);
      expect(
        namesIn(each).filter((name) => !known.has(name)),
        service,
      ).toEqual([]);
    }
  });

  test('Millrace runs the slim image, on the stores of the file, with the settings file of clusters', () => {
    for (const [, { build, image, environment = {} }] of millraces(compose)) {
      expect(build?.target ?? image).toMatch(/slim$/);
      expect(environment['MILLRACE_CONFIG']).toBe('/app/config/cluster.yaml');
      const hosts = ['CLICKHOUSE_URL', 'DATABASE_URL', 'REDIS_URL'].map(
        (name) => /(?:@|\/\/)(\w+):\d+/.exec(environment[name]!)?.[1],
      );
      expect(hosts.filter((host) => !(host! in compose.services))).toEqual([]);
    }
    expect(dockerfile).toMatch(/ AS slim$/m);
    expect(readFileSync('config/cluster.yaml', 'utf8')).toContain('${CLICKHOUSE_URL:');
  });

  test('secrets come from the environment of docker compose alone', () => {
    for (const [, { environment = {} }] of millraces(compose)) {
      for (const [name, value] of Object.entries(environment)) {
        if (/PASSWORD/.test(name)) expect(value).toMatch(/^\$\{\w+:\?set \w+\}$/);
      }
    }
  });

  test('named volumes are declared, used, and have one owner', () => {
    const used = Object.values(compose.services)
      .map((service) => (service.extends ? single.services[service.extends.service]! : service))
      .flatMap(({ volumes = [] }) => volumes.map((volume) => volume.split(':')[0]!))
      .filter((name) => !name.startsWith('.') && !name.startsWith('/'));
    expect(used.sort()).toEqual(Object.keys(compose.volumes).sort());
  });

  test('each service that another one waits for exists', () => {
    for (const { depends_on: needed = {} } of Object.values(compose.services)) {
      for (const name of Array.isArray(needed) ? needed : Object.keys(needed))
        expect(compose.services).toHaveProperty(name);
    }
  });

  test('no port of a container is published twice, and that of operators never', () => {
    const published = Object.values(compose.services).flatMap(({ ports = [] }) => ports);
    expect(new Set(published.map((port) => port.split(':').at(-2))).size).toBe(published.length);
    expect(published.filter((port) => port.endsWith(`:${defaultOf('MONITOR_BIND_PORT')}`))).toEqual([]);
  });

  test('a stop has the time that its steps may take', () => {
    for (const [name, { environment = {}, stop_grace_period: grace, command }] of millraces(compose)) {
      if (command) continue;
      const of = (setting: string) => Number(environment[setting] ?? defaultOf(setting));
      const evictMs = of('SHUTDOWN_EVICT_PER_SECOND') === 0 ? 0 : of('SHUTDOWN_EVICT_MS_MAX');
      const stopMs = of('SHUTDOWN_DELAY_MS') + evictMs + of('SHUTDOWN_DRAIN_MS_MAX') + of('SHUTDOWN_STORES_MS_MAX');
      expect(Number.parseInt(grace!, 10) * 1000, name).toBeGreaterThan(stopMs);
    }
  });
});

describe('docker-compose.yml', () => {
  test('Redis wants a password, and Millrace has it', () => {
    const { command = [], environment } = single.services['redis']!;
    const password = '${REDIS_PASSWORD:?set REDIS_PASSWORD}';
    expect(command.slice(command.indexOf('--requirepass'))).toEqual(['--requirepass', password]);
    expect(environment!['REDISCLI_AUTH']).toBe(password);
    for (const [, compose] of files) {
      for (const [, each] of millraces(compose)) {
        expect(each.environment!['REDIS_URL']).toBe(`redis://:${password}@redis:6379`);
      }
    }
  });
});

describe('docker-compose.hosts.yml', () => {
  const { haproxy, migrate, ...others } = several.services;
  const hosts = Object.entries(others).filter(([name]) => name.startsWith('millrace')) as [string, Service][];
  const given = haproxy!.environment!;
  const file = readFileSync('ops/haproxy.cfg', 'utf8');
  const addressOf = ({ networks }: Service) => networks!['default']!.ipv4_address;

  test('HAProxy gets every value that its file wants, and accepts the file with them', () => {
    const wanted = new Set([...file.matchAll(/\$\{(\w+)\}/g)].map((match) => match[1]));
    expect(Object.keys(given).sort()).toEqual([...wanted].sort());
    const path = `${process.env['PATH']}:/usr/sbin`;
    execFileSync('haproxy', ['-q', '-c', '-f', 'ops/haproxy.cfg'], { env: { ...given, PATH: path }, stdio: 'pipe' });
  });

  test('HAProxy knows two hosts at their addresses and ports, and they trust its address', () => {
    expect(hosts).toHaveLength(2);
    for (const [at, [, host]] of hosts.entries()) {
      expect(given[`HOST${at + 1}_ADDRESS`]).toBe(addressOf(host));
      for (const [door, setting] of [
        ['HTTP', 'HTTP_BIND_PORT'],
        ['MQTT', 'MQTT_BIND_PORT'],
        ['MQTTS', 'MQTT_SSL_BIND_PORT'],
        ['REPORTS', 'ANALYTICS_BIND_PORT'],
        ['MONITOR', 'MONITOR_BIND_PORT'],
      ]) {
        expect(given[`HOST${at + 1}_${door}_PORT`]).toBe(host.environment![setting!] ?? defaultOf(setting!));
      }
      expect(host.environment).toMatchObject({
        TRUSTED_PROXIES: addressOf(haproxy!),
        MQTT_PROXY_PROTOCOL_ENABLED: 'true',
        MONITOR_BIND_ADDRESS: '0.0.0.0',
      });
      expect(host.ports).toBeUndefined();
    }
    expect(given['HAPROXY_SOURCE']).toBe(addressOf(haproxy!));
    expect(haproxy!.ports).toEqual(
      [given['HAPROXY_HTTP_PORT'], given['HAPROXY_MQTT_PORT']].map((port) => `${port}:${port}`),
    );
  });

  test('addresses are different ones of the network', () => {
    const addresses = [haproxy!, ...hosts.map(([, host]) => host)].map(addressOf);
    expect(new Set(addresses).size).toBe(addresses.length);
    const { subnet } = several.networks!['default']!.ipam.config[0]!;
    expect(subnet).toMatch(/\.0\/24$/);
    for (const address of addresses) expect(address.startsWith(subnet.slice(0, -4))).toBe(true);
  });

  test('hosts differ in their name and volume only, and start after the migration', () => {
    expect(new Set(hosts.map(([, { volumes }]) => volumes![0])).size).toBe(2);
    for (const [name, { environment, depends_on: needed }] of hosts) {
      const { INSTANCE_NAME, ...same } = environment!;
      expect(INSTANCE_NAME).toBe(name);
      expect(same).toEqual(migrate!.environment);
      expect(needed).toMatchObject({ migrate: { condition: 'service_completed_successfully' } });
    }
    expect(migrate!.command).toEqual(['node', 'dist/migrate.js']);
    expect(migrate!.environment!['MIGRATE']).toBe('false');
  });

  test('a stopping host is out of the balancer before it stops', () => {
    const [, seconds, falls] = /inter (\d+)s fall (\d+)/.exec(file)!;
    const [, checkSeconds] = /timeout check (\d+)s/.exec(file)!;
    for (const [, { environment }] of hosts) {
      expect(Number(environment!['SHUTDOWN_DELAY_MS'])).toBeGreaterThanOrEqual(
        (Number(seconds) + Number(checkSeconds)) * 1000 * Number(falls),
      );
    }
  });
});

describe('ops/millrace.service', () => {
  const unit = readFileSync('ops/millrace.service', 'utf8');
  const of = (name: string) => [...unit.matchAll(new RegExp(`^${name}=(.*)$`, 'gm'))].map(([, value]) => value!);
  const [, given] = /^# \/etc\/millrace\/millrace\.env (?:.*\n)([\s\S]*?)^```$/m.exec(
    readFileSync('docs/operations.md', 'utf8'),
  )!;
  const environment = Object.fromEntries(
    [...of('Environment'), ...given!.trim().split('\n')].map((line) => line.split(/=(.*)/s).slice(0, 2)),
  ) as Record<string, string>;

  test('runs what a build makes, not as root, and leaves the stop to the first process', () => {
    expect(of('ExecStart')).toEqual(['/usr/bin/node dist/main.js']);
    expect(of('User')).toEqual(['millrace']);
    expect(of('KillMode')).toEqual(['mixed']);
    expect(of('EnvironmentFile')).toEqual(['/etc/millrace/millrace.env']);
    expect(environment['DATA_DIR']).toBe(`/var/lib/${of('StateDirectory')[0]}`);
  });

  test('every environment name, also of the example, is a known setting, and no secret is a value', () => {
    const known = environmentNames();
    const names = Object.keys(environment);
    expect(names.length).toBeGreaterThan(12);
    expect(names.filter((name) => name !== 'NODE_ENV' && !known.has(name))).toEqual([]);
    expect(
      names.filter((name) => /PASSWORD|SECRET|TOKEN|KEY|DATABASE_URL|REDIS_URL/.test(name) && !name.endsWith('_FILE')),
    ).toEqual([]);
  });

  test('a stop has the time that its steps may take', () => {
    const setting = (name: string) => Number(environment[name] ?? defaultOf(name));
    const steps = ['DELAY_MS', 'EVICT_MS_MAX', 'DRAIN_MS_MAX', 'STORES_MS_MAX'].map((step) =>
      setting(`SHUTDOWN_${step}`),
    );
    expect(Number(of('TimeoutStopSec')[0]) * 1000).toBeGreaterThan(steps.reduce((sum, ms) => sum + ms, 0));
  });
});

test('the list of docs/balancers.md has every value that the files of HAProxy want', () => {
  const wanted = ['ops/haproxy.cfg', 'ops/haproxy-https.cfg'].flatMap((path) =>
    [...readFileSync(path, 'utf8').matchAll(/\$\{(\w+)\}/g)].map((match) => match[1]!),
  );
  const listed = [...readFileSync('docs/balancers.md', 'utf8').matchAll(/^((?:HAPROXY|HOST1)_\w+)=/gm)].map(
    (match) => match[1]!,
  );
  expect(new Set(wanted.filter((name) => !name.startsWith('HOST2_')))).toEqual(new Set(listed));
});
