/**
 * The Helm chart, rendered by helm and checked with the schemas of Kubernetes. `test/chart-tools.sh` builds helm and
 * installs the program that has the schemas.
 */
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse, parseAllDocuments, stringify } from 'yaml';
import { environmentNames } from '../../src/base/settings/config.ts';

const chart = 'ops/helm/millrace';
const kubernetesVersions = ['1.27', '1.31', '1.37'];
const directory = mkdtempSync(join(tmpdir(), 'millrace-chart-'));
let tools: string;

beforeAll(async () => {
  const { stdout } = await promisify(execFile)('sh', ['test/chart-tools.sh'], { maxBuffer: 1e7 });
  tools = stdout.trim();
}, 800_000);

afterAll(() => rmSync(directory, { recursive: true, force: true }));

// biome-ignore lint/suspicious/noExplicitAny: objects of Kubernetes, whose schemas another program checks
type Resource = any;

const stores = {
  clickhouse: { url: 'https://clickhouse:8443', cluster: 'fleet', existingSecret: 'stores', passwordKey: 'clickhouse' },
  postgresql: { existingSecret: 'stores' },
  redis: { existingSecret: 'stores', urlKey: 'redis' },
};

/** Two hosts on stores of their own cluster, and every part of the chart. */
const everything = {
  replicaCount: 2,
  image: { pullSecrets: [{ name: 'registry' }] },
  stores: { ...stores, authorities: { existingSecret: 'authorities' } },
  admin: { existingSecret: 'admin' },
  settings: {
    RATE_LIMITS_DEVICE_MESSAGES: '100:1',
    LIMITS_DEVICES: 1000000,
    LOG_LEVEL: 'debug',
    CLICKHOUSE_SHARDS: 'https://clickhouse-1:8443',
    DATABASE_BEHIND_POOLER: true,
    INSTANCE_ZONE: 'east',
    RULES_FILE: '/rules/rules.yaml',
  },
  secretSettings: [{ name: 'JWT_TOKEN_SIGNING_KEY', secretName: 'jwt', key: 'key' }],
  settingsFile: 'gateway:\n  childrenMax: 1000\n',
  tls: { existingSecret: 'certificate' },
  trustedProxies: ['10.0.0.0/8', 'fd00::/8'],
  mqttProxyProtocol: true,
  service: {
    http: {
      type: 'LoadBalancer',
      annotations: { 'example.com/kind': 'nlb' },
      loadBalancerSourceRanges: ['192.0.2.0/24'],
    },
    mqtt: { type: 'NodePort' },
  },
  extraVolumes: [{ name: 'rules', configMap: { name: 'rules' } }],
  extraVolumeMounts: [{ name: 'rules', mountPath: '/rules', readOnly: true }],
  persistence: { storageClassName: 'fast', annotations: { 'example.com/tier': 'gold' } },
  antiAffinity: 'hard',
  nodeSelector: { disk: 'nvme' },
  tolerations: [{ key: 'ingest', operator: 'Exists' }],
  priorityClassName: 'high',
  podAnnotations: { 'example.com/team': 'iot' },
  podLabels: { team: 'iot' },
  serviceAccount: { annotations: { 'example.com/role': 'none' } },
  networkPolicy: {
    clients: [{ ipBlock: { cidr: '0.0.0.0/0' } }],
    monitors: [{ namespaceSelector: { matchLabels: { name: 'monitoring' } } }],
    egress: [{ to: [{ podSelector: {} }] }],
  },
  metrics: {
    serviceMonitor: { enabled: true, labels: { release: 'prometheus' } },
    prometheusRule: { enabled: true, labels: { release: 'prometheus' } },
    grafanaDashboard: { enabled: true },
  },
};

/** The smallest installation. */
const nothing = {
  reports: { enabled: false },
  podDisruptionBudget: { enabled: false },
  networkPolicy: { enabled: false },
  serviceAccount: { create: false },
  antiAffinity: 'none',
  topologySpread: false,
  shutdown: { evictPerSecond: 0 },
};

const [, example] = /^```yaml\n(# fleet\.yaml\..*?)^```$/ms.exec(readFileSync('docs/operations.md', 'utf8'))!;

const cases: [string, object][] = [
  ['the example of docs/operations.md', parse(example!)],
  ['default values', {}],
  ['everything', everything],
  ['as little as possible', nothing],
  ['one host on external stores, without the Job', { stores, migrate: { enabled: false } }],
];

function helm(...words: string[]): { status: number | null; stdout: string; stderr: string } {
  return spawnSync(join(tools, 'helm'), words, {
    encoding: 'utf8',
    env: { PATH: process.env['PATH'], HOME: directory },
  });
}

let count = 0;

function valuesFile(values: object): string {
  count += 1;
  const path = join(directory, `values-${count}.yaml`);
  writeFileSync(path, stringify(values));
  return path;
}

function rendered(values: object): string {
  const version = ['--kube-version', '1.31.0'];
  const { status, stdout, stderr } = helm('template', 'mill', chart, '-n', 'iot', '-f', valuesFile(values), ...version);
  expect(status, stderr).toBe(0);
  return stdout;
}

function render(values: object): Resource[] {
  return parseAllDocuments(rendered(values))
    .map((document) => document.toJS())
    .filter((resource) => resource !== null);
}

function refusal(values: object): string {
  const { status, stderr } = helm('template', 'mill', chart, '-f', valuesFile(values), '--kube-version', '1.31.0');
  expect(status).toBe(1);
  return stderr;
}

const only = (resources: Resource[], kind: string): Resource => {
  const [found, ...more] = resources.filter((resource) => resource.kind === kind);
  expect(more).toEqual([]);
  return found;
};
const podOf = (workload: Resource): Resource => workload.spec.template.spec;
const containersOf = (resources: Resource[]): Resource[] =>
  resources.filter(({ kind }) => kind === 'StatefulSet' || kind === 'Job').flatMap((each) => podOf(each).containers);
const settingOf = (container: Resource, name: string) =>
  container.env.find((each: Resource) => each.name === name)?.value;

describe.each(cases)('%s', (_, values) => {
  test('helm finds no fault', () => {
    const { status, stdout } = helm('lint', chart, '--strict', '--kube-version', '1.31.0', '-f', valuesFile(values));
    expect(status, stdout).toBe(0);
  });

  test.each(kubernetesVersions)(
    'every object fits the schemas of Kubernetes %s, and has no unknown member',
    (version) => {
      const path = join(directory, 'objects.yaml');
      writeFileSync(path, rendered(values));
      const words = ['-m', 'kubernetes_validate', '--strict', '-k', version, path];
      const { status, stdout } = spawnSync(join(tools, 'python/bin/python'), words, { encoding: 'utf8' });
      const lines = stdout.trim().split('\n');
      // Kinds of the Prometheus operator, which Kubernetes does not define, are checked below.
      expect(
        lines.filter((line) => !line.startsWith('INFO') && !/for kind (ServiceMonitor|PrometheusRule) /.test(line)),
      ).toEqual([]);
      expect(status).toBe(0);
      expect(lines).toHaveLength(render(values).length);
    },
  );

  test('every environment name is a known setting, and named once', () => {
    const known = environmentNames().add('NODE_EXTRA_CA_CERTS').add('POD_NAME');
    for (const { env } of containersOf(render(values))) {
      const names = env.map(({ name }: Resource) => name) as string[];
      expect(names.length).toBeGreaterThan(2);
      expect(names.filter((name) => !known.has(name))).toEqual([]);
      expect(new Set(names).size).toBe(names.length);
    }
  });

  test('no secret is in an object: each comes from a Secret of the operator', () => {
    const resources = render(values);
    expect(resources.filter(({ kind }) => kind === 'Secret')).toEqual([]);
    const secret = /PASSWORD|DATABASE_URL|REDIS_URL|SIGNING_KEY/;
    for (const { env } of containersOf(resources)) {
      for (const { name, value } of env) if (secret.test(name)) expect(value, name).toBeUndefined();
    }
  });

  test('each port that a service, a probe or a policy names is one of the pod, and one that Millrace opens', () => {
    const resources = render(values);
    const [container] = podOf(only(resources, 'StatefulSet')).containers;
    const ports = new Map<string, number>(container.ports.map((each: Resource) => [each.name, each.containerPort]));
    for (const { spec } of resources.filter(({ kind }) => kind === 'Service')) {
      for (const { targetPort } of spec.ports) expect([...ports.keys()]).toContain(targetPort);
    }
    for (const probe of ['startupProbe', 'livenessProbe', 'readinessProbe']) {
      expect(container[probe].httpGet.port).toBe('monitor');
    }
    expect(container.livenessProbe.httpGet.path).toBe('/livez');
    expect(container.readinessProbe.httpGet.path).toBe('/readyz');
    const policy = only(resources, 'NetworkPolicy');
    const open = policy?.spec.ingress.flatMap((rule: Resource) => rule.ports.map(({ port }: Resource) => port)) ?? [];
    if (policy) expect(open.sort()).toEqual([...ports.keys()].sort());
    const settings = { http: 'HTTP_BIND_PORT', mqtt: 'MQTT_BIND_PORT', monitor: 'MONITOR_BIND_PORT' };
    const more = { reports: 'ANALYTICS_BIND_PORT', https: 'HTTPS_BIND_PORT', mqtts: 'MQTT_SSL_BIND_PORT' };
    const all: Record<string, string> = { ...settings, ...more };
    for (const [name, port] of ports) expect(settingOf(container, all[name]!), name).toBe(String(port));
    expect(settingOf(container, 'MONITOR_BIND_ADDRESS')).toBe('0.0.0.0');
  });

  test('selectors find the pods of the hosts, and not that of the Job', () => {
    const resources = render(values);
    const set = only(resources, 'StatefulSet');
    const { labels } = set.spec.template.metadata;
    const selectors = [
      set.spec.selector.matchLabels,
      ...resources.filter(({ kind }) => kind === 'Service').map(({ spec }) => spec.selector),
      only(resources, 'PodDisruptionBudget')?.spec.selector.matchLabels,
      only(resources, 'NetworkPolicy')?.spec.podSelector.matchLabels,
    ].filter((each) => each !== undefined);
    for (const selector of selectors) expect(labels).toMatchObject(selector);
    const job = only(resources, 'Job');
    if (job) expect(job.spec.template.metadata.labels).not.toMatchObject(selectors[0]);
    expect(
      resources.filter(({ kind, metadata }) => kind === 'Service' && metadata.name === set.spec.serviceName),
    ).toHaveLength(1);
  });

  test('a pod has a volume of its own, which stays, and no rights', () => {
    const { spec } = only(render(values), 'StatefulSet');
    expect(spec.volumeClaimTemplates).toHaveLength(1);
    expect(spec.persistentVolumeClaimRetentionPolicy).toEqual({ whenDeleted: 'Retain', whenScaled: 'Retain' });
    const [container] = spec.template.spec.containers;
    expect(container.volumeMounts).toContainEqual({ name: 'data', mountPath: '/data' });
    // Kubernetes gives the top folder of the volume to root and lets the group write to it, so Millrace could not make
    // that folder private.
    expect(settingOf(container, 'DATA_DIR')).toBe('/data/millrace');
    const volumes = ['data', ...spec.template.spec.volumes.map(({ name }: Resource) => name)];
    expect(container.volumeMounts.map(({ name }: Resource) => name).sort()).toEqual(volumes.sort());
    expect(spec.template.spec).toMatchObject({
      automountServiceAccountToken: false,
      securityContext: { runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000 },
    });
    expect(container.securityContext).toMatchObject({ readOnlyRootFilesystem: true, allowPrivilegeEscalation: false });
  });

  test('a pod may stop as long as its steps take', () => {
    const pod = podOf(only(render(values), 'StatefulSet'));
    const of = (name: string) => Number(settingOf(pod.containers[0], name));
    const evictMs = of('SHUTDOWN_EVICT_PER_SECOND') === 0 ? 0 : of('SHUTDOWN_EVICT_MS_MAX');
    const stopMs = of('SHUTDOWN_DELAY_MS') + evictMs + of('SHUTDOWN_DRAIN_MS_MAX') + of('SHUTDOWN_STORES_MS_MAX');
    expect(pod.terminationGracePeriodSeconds * 1000).toBe(stopMs + 15_000);
    // Readiness is lost, and so the endpoint, before the host stops.
    const { periodSeconds, failureThreshold } = pod.containers[0].readinessProbe;
    expect(of('SHUTDOWN_DELAY_MS')).toBeGreaterThanOrEqual(periodSeconds * failureThreshold * 1000);
  });

  test('`npm run config` accepts the settings of a host', () => {
    const resources = render({ ...values, tls: {}, settingsFile: '' });
    const noFile = (name: string) => name !== 'NODE_EXTRA_CA_CERTS' && name !== 'RULES_FILE';
    const [container] = podOf(only(resources, 'StatefulSet')).containers;
    const secrets: Record<string, string> = {
      DATABASE_URL: 'postgresql://mill:wheel@postgres:5432/mill',
      REDIS_URL: 'rediss://:wheel@redis:6379',
      CLICKHOUSE_PASSWORD: 'wheel',
      ADMIN_PASSWORD: 'mill-wheel-7',
      JWT_TOKEN_SIGNING_KEY: Buffer.alloc(64, 7).toString('base64'),
    };
    const env = Object.fromEntries(
      container.env
        .filter(({ name }: Resource) => noFile(name))
        .map(({ name, value, valueFrom }: Resource) => [
          name,
          value ?? (valueFrom.secretKeyRef ? secrets[name] : 'mill-0'),
        ]),
    );
    expect(Object.values(env)).not.toContain(undefined);
    const run = spawnSync(process.execPath, ['dist/config.js', 'changed'], {
      encoding: 'utf8',
      env: { PATH: process.env['PATH'], MILLRACE_STRICT: 'true', ...env },
    });
    expect(run.stdout.split('\n').filter((line) => /^(fault|warning)/.test(line))).toEqual([]);
    expect(run.status, run.stderr).toBe(0);
  });
});

test('the Job runs the command of the image before hosts are replaced, and hosts then change no schema', () => {
  const resources = render(everything);
  const job = only(resources, 'Job');
  expect(job.metadata.annotations).toMatchObject({ 'helm.sh/hook': 'pre-install,pre-upgrade' });
  const [container] = podOf(job).containers;
  // The entry point of the image, which hands signals on, stays.
  expect(container.command).toBeUndefined();
  expect(container.args).toEqual(['node', 'dist/migrate.js']);
  expect(existsSync('src/migrate.ts')).toBe(true);
  const [host] = podOf(only(resources, 'StatefulSet')).containers;
  expect(container.image).toBe(host.image);
  expect(settingOf(host, 'MIGRATE')).toBe('false');
  // The Job changes the stores, and with the settings, that the hosts have: shards, a pooler, a settings file.
  const names = ['INSTANCE_NAME', 'POD_NAME', 'INSTANCE_ADDRESS', 'ADMIN_PASSWORD'];
  expect(container.env).toEqual(host.env.filter(({ name }: Resource) => !names.includes(name)));
  expect(settingOf(container, 'CLICKHOUSE_SHARDS')).toBe('https://clickhouse-1:8443');
  const [file, ...more] = resources.filter(({ metadata }) => metadata.name === 'mill-migrate-settings');
  expect(more).toEqual([]);
  expect(file.data['millrace.yaml'].trim()).toBe(everything.settingsFile.trim());
  expect(file.metadata.annotations['helm.sh/hook']).toBe(job.metadata.annotations['helm.sh/hook']);
  const weight = (resource: Resource) => Number(resource.metadata.annotations['helm.sh/hook-weight']);
  expect(weight(file)).toBeLessThan(weight(job));
  const { volumes } = podOf(job);
  expect(volumes).toContainEqual({ name: 'settings', configMap: { name: 'mill-migrate-settings' } });
  expect(container.volumeMounts.map(({ name }: Resource) => name).sort()).toEqual(
    volumes.map(({ name }: Resource) => name).sort(),
  );
  // A service account of the release does not exist before the installation.
  expect(podOf(job).serviceAccountName).toBeUndefined();
});

test('without external stores, or without the Job, each host migrates by itself', () => {
  for (const values of [{}, { stores, migrate: { enabled: false } }]) {
    const resources = render(values);
    expect(only(resources, 'Job')).toBeUndefined();
    expect(settingOf(podOf(only(resources, 'StatefulSet')).containers[0], 'MIGRATE')).toBe('true');
  }
});

test('the image is that of the version: the slim one when both stores are external', () => {
  const { version } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };
  const { appVersion } = parse(readFileSync(join(chart, 'Chart.yaml'), 'utf8')) as { appVersion: string };
  expect(appVersion).toBe(version);
  const imageOf = (values: object) => podOf(only(render(values), 'StatefulSet')).containers[0].image;
  expect(imageOf({})).toBe(`millrace:${version}`);
  expect(imageOf({ stores })).toBe(`millrace:${version}-slim`);
  expect(imageOf({ image: { repository: 'registry.example/millrace', tag: '7' } })).toBe('registry.example/millrace:7');
});

test('a value of `settings` wins, and a settings file is mounted and changes the pods', () => {
  const [container] = podOf(only(render({ settings: { WORKERS: 9, MQTT_ENABLED: false } }), 'StatefulSet')).containers;
  expect(settingOf(container, 'WORKERS')).toBe('9');
  expect(settingOf(container, 'MQTT_ENABLED')).toBe('false');
  const none = { ANALYTICS_ENABLED: false, ADMIN_EMAIL: '', TRUSTED_PROXIES: '' };
  const [without] = podOf(only(render({ settings: none, trustedProxies: ['10.0.0.1'] }), 'StatefulSet')).containers;
  for (const [name, value] of Object.entries(none)) expect(settingOf(without, name), name).toBe(String(value));
  const named = { INSTANCE_ZONE: 'east', LIMITS_DEVICES: 1000000 };
  const secretSettings = [{ name: 'ADMIN_PASSWORD', secretName: 'other', key: 'admin' }];
  const admin = { existingSecret: 'admin' };
  const pod = podOf(only(render({ settings: named, secretSettings, admin }), 'StatefulSet'));
  const { env } = pod.containers[0];
  expect(env.filter(({ name }: Resource) => name === 'INSTANCE_ZONE')).toEqual([
    { name: 'INSTANCE_ZONE', value: 'east' },
  ]);
  expect(settingOf(pod.containers[0], 'LIMITS_DEVICES')).toBe('1000000');
  const secretKeyRef = { name: 'other', key: 'admin' };
  expect(env.filter(({ name }: Resource) => name === 'ADMIN_PASSWORD')).toEqual([
    { name: 'ADMIN_PASSWORD', valueFrom: { secretKeyRef } },
  ]);
  const resources = render(everything);
  const file = resources.find(({ kind, metadata }) => kind === 'ConfigMap' && metadata.name === 'mill-settings');
  expect(file.data['millrace.yaml'].trim()).toBe(everything.settingsFile.trim());
  const host = podOf(only(resources, 'StatefulSet')).containers[0];
  expect(settingOf(host, 'MILLRACE_CONFIG')).toBe('/settings/millrace.yaml');
  const sumOf = (values: object) =>
    only(render(values), 'StatefulSet').spec.template.metadata.annotations['checksum/settings'];
  expect(sumOf({ settingsFile: 'a: 1' })).not.toBe(sumOf({ settingsFile: 'a: 2' }));
});

test('the address of a host is that of its pod, also with a name of the operator', () => {
  for (const settings of [{}, { INSTANCE_NAME: 'mill' }]) {
    const [{ env }] = podOf(only(render({ settings }), 'StatefulSet')).containers;
    const at = env.findIndex(({ name }: Resource) => name === 'INSTANCE_ADDRESS');
    const [, host] = /^\$\((\w+)\)\.mill-hosts:8080$/.exec(env[at].value)!;
    // Kubernetes expands only names that are defined before.
    const { valueFrom } = env.slice(0, at).find(({ name }: Resource) => name === host);
    expect(valueFrom).toEqual({ fieldRef: { fieldPath: 'metadata.name' } });
  }
});

test('Prometheus finds the pods, and alerts and dashboard are those of the repository', () => {
  const resources = render(everything);
  const monitor = only(resources, 'ServiceMonitor');
  expect(monitor.apiVersion).toBe('monitoring.coreos.com/v1');
  const found = resources.filter(
    ({ kind, metadata }) =>
      kind === 'Service' &&
      Object.entries(monitor.spec.selector.matchLabels).every(([name, value]) => metadata.labels[name] === value),
  );
  expect(found).toHaveLength(1);
  const [endpoint] = monitor.spec.endpoints;
  expect(found[0].spec.ports.map(({ name }: Resource) => name)).toContain(endpoint.port);
  expect(endpoint.path).toBe('/metrics');
  const alerts = readFileSync('ops/alerts.yaml', 'utf8');
  expect([...alerts.matchAll(/job="(\w+)"/g)].map(([, job]) => job)).toContain(endpoint.relabelings[0].replacement);
  const rule = only(resources, 'PrometheusRule');
  expect(rule.apiVersion).toBe('monitoring.coreos.com/v1');
  expect(rule.spec).toEqual(parse(alerts));
  const dashboard = resources.find(
    ({ kind, metadata }) => kind === 'ConfigMap' && metadata.name.endsWith('-dashboard'),
  );
  expect(JSON.parse(dashboard.data['millrace.json'])).toEqual(
    JSON.parse(readFileSync('ops/grafana/millrace.json', 'utf8')),
  );
});

test('values that cannot work are refused with what to change', () => {
  expect(refusal({ replicaCount: 2 })).toMatch(
    /replicaCount above 1 needs stores that the hosts share: set stores\.clickhouse\.url/,
  );
  expect(refusal({ replicaCount: 2, stores: { ...stores, redis: {} } })).toMatch(/set stores\.redis\.existingSecret/);
  expect(refusal({ mqttProxyProtocol: true })).toMatch(/mqttProxyProtocol needs trustedProxies/);
  const twice = { settings: { LOG_LEVEL: 'info' }, secretSettings: [{ name: 'LOG_LEVEL', secretName: 'a', key: 'b' }] };
  expect(refusal(twice)).toMatch(/LOG_LEVEL is in settings and in secretSettings: name it in one of them/);
  expect(refusal({ extraVolumes: [{ name: 'data', emptyDir: {} }] })).toMatch(/extraVolumes/);
  expect(refusal({ replicas: 2 })).toMatch(/replicas.* not allowed/);
  expect(refusal({ ports: { http: 'eighty' } })).toMatch(/ports\/http|ports\.http/);
  expect(refusal({ stores: { clickhouse: { url: 'http://mill:secret@clickhouse:8123' } } })).toMatch(/clickhouse/);
  expect(refusal({ settings: { lower_case: 1 } })).toMatch(/settings'.*lower_case.* not allowed/);
  const port = { name: 'MQTT_BIND_PORT', secretName: 'a', key: 'b' };
  expect(refusal({ secretSettings: [port] })).toMatch(/MQTT_BIND_PORT is in .*secretSettings: set ports\.mqtt/);
  expect(refusal({ settings: { SHUTDOWN_DELAY_MS: 0 } })).toMatch(/SHUTDOWN_DELAY_MS .*: set shutdown\.delayMs/);
});

test('a release whose name is a number has labels of text, and needs a name for its services', () => {
  const template = (values: object) =>
    helm('template', '123', chart, '-f', valuesFile(values), '--kube-version', '1.31.0');
  expect(template({}).stderr).toMatch(/cannot be named 123.*set fullnameOverride/);
  const { status, stdout, stderr } = template({ ...everything, fullnameOverride: 'mill' });
  expect(status, stderr).toBe(0);
  const found = stdout.match(/app\.kubernetes\.io\/instance: .*/g)!;
  expect(found.length).toBeGreaterThan(10);
  expect(new Set(found)).toEqual(new Set(['app.kubernetes.io/instance: "123"']));
});

test('the schema of the values knows every value and default', () => {
  const values = parse(readFileSync(join(chart, 'values.yaml'), 'utf8')) as object;
  const schema = JSON.parse(readFileSync(join(chart, 'values.schema.json'), 'utf8'));
  const missing = (part: Resource, of: Resource, path: string): string[] =>
    Object.entries(part).flatMap(([name, value]) => {
      const known = of.properties?.[name];
      if (known === undefined) return [`${path}${name}`];
      const isPlain = typeof value === 'object' && value !== null && !Array.isArray(value);
      return isPlain && known.properties ? missing(value, known, `${path}${name}.`) : [];
    });
  expect(missing(values, schema, '')).toEqual([]);
});

test('the notes after an installation name services, the administrator and the command', () => {
  // `helm template` leaves the notes out, so a copy of them is rendered as an object.
  const copy = join(directory, 'chart');
  execFileSync('cp', ['-rL', chart, copy]);
  const notes = readFileSync(join(chart, 'templates/NOTES.txt'), 'utf8');
  const indented = `{{- define "notes" -}}\n${notes}{{- end -}}\nkind: Notes\ntext: {{ include "notes" . | quote }}\n`;
  writeFileSync(join(copy, 'templates/notes.yaml'), indented);
  const textOf = (values: object): string => {
    const words = ['template', 'mill', copy, '-n', 'iot', '-f', valuesFile(values), '--kube-version', '1.31.0'];
    const { stdout, status, stderr } = helm(...words, '--show-only', 'templates/notes.yaml');
    expect(status, stderr).toBe(0);
    return (parse(stdout) as { text: string }).text;
  };
  expect(textOf({})).toMatch(/1 host, embedded stores.*mill-http\.iot:8080.*mill-mqtt\.iot:1883.*logs mill-0/s);
  expect(textOf(everything)).toMatch(/2 hosts, external stores.*password in the Secret admin.*Job mill-migrate/s);
});
