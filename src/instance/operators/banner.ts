/** Writes the message that an operator reads at the start: addresses, credentials, and commands that can be pasted. */
import { counted } from '../../base/counted.ts';
import { openOutput } from '../../base/line-output.ts';
import type { Config } from '../../base/settings/config.ts';

export interface Banner {
  version: string;
  seconds: number;
  workers: number;
  engines: string;
  ack: Config['ingest']['ack'];
  /** The addresses of the servers of the stream. */
  streamUrl: string;
  dataPath: string;
  /** The address of HTTP and HTTPS. */
  address: string;
  port: number;
  httpsPort: number;
  /** True when the page of the API is served. */
  docs: boolean;
  mqttAddress: string;
  /** 0 and '' = off. */
  mqttPort: number;
  mqttsAddress: string;
  mqttsPort: number;
  mqttPath: string;
  analyticsAddress: string;
  analyticsPort: number;
  monitorAddress: string;
  monitorPort: number;
  adminEmail: string;
  /** '' = the account was made by an earlier start. */
  systemEmail: string;
  /** Set only when the password was generated at this start. */
  adminPassword: string | undefined;
  /** True when this start made the administrators. */
  adminCreated: boolean;
  /** True when other hosts may use the database as well. */
  isShared: boolean;
  demoDevice: { id: string; token: string } | undefined;
  /** The reasons why the service is degraded, in sentences. */
  missing: string[];
  /** What the operator may want to change in the settings or on this machine, in sentences. */
  warnings: string[];
  /** The reason why telemetry is refused, in a sentence that says what to change. */
  refusal: string | undefined;
}

const stdout = openOutput(1);

export function printProgress(line: string): void {
  stdout.write(`millrace: ${line}\n`);
}

export function printBanner(banner: Banner): void {
  const { demoDevice } = banner;
  const host = reachable(banner.address);
  const base = `http://${host}:${banner.port}`;
  const lines = [
    '',
    ...stateLines(banner),
    ...warningLines(banner.warnings),
    '',
    `  Devices and REST   ${base}${banner.httpsPort ? `   https://${host}:${banner.httpsPort}` : ''}`,
    `  Console            ${base}/${banner.docs ? `   ${base}/swagger-ui/` : ''}`,
    ...(banner.mqttPort ? [`  MQTT               ${mqttAddresses(banner).join('   ')}`] : []),
    ...(banner.analyticsPort ? [`  Reports            ${reportsUrl(banner)}`] : []),
    `  Health             ${base}/readyz`,
    `  Metrics            ${monitorUrl(banner)}/metrics`,
    `  Stores             ${banner.engines}`,
    `  Acknowledges       ${acknowledgedWhen(banner)}   (INGEST_ACK=${banner.ack})`,
    `  Data               ${banner.dataPath}`,
    `  Administrator      ${banner.adminEmail}   ${passwordLine(banner)}`,
    ...(banner.systemEmail ? [`  System admin       ${banner.systemEmail}   the same password; makes tenants`] : []),
  ];
  if (demoDevice) {
    lines.push(
      `  Demo device        token ${demoDevice.token}`,
      '',
      'Send telemetry, sign in, read it back:',
      '',
      `  curl -sS -w '%{http_code}\\n' ${base}/api/v1/${demoDevice.token}/telemetry -H 'Content-Type: application/json' -d '{"temperature": 21.5}'`,
      ...(banner.mqttPort
        ? [
            `  mosquitto_pub -h ${reachable(banner.mqttAddress).replace(/[[\]]/g, '')} -p ${banner.mqttPort} -u ${demoDevice.token} -q 1 -t v1/devices/me/telemetry -m '{"temperature": 21.5}'`,
          ]
        : []),
      '',
      `  JWT=$(curl -sS ${base}/api/auth/login -d '{"username":"${banner.adminEmail}","password":"${banner.adminPassword ?? 'PASSWORD'}"}' | sed 's/.*"token":"\\([^"]*\\)".*/\\1/')`,
      `  curl -sS -H "X-Authorization: Bearer $JWT" '${base}/api/plugins/telemetry/DEVICE/${demoDevice.id}/values/timeseries?useStrictDataTypes=true'`,
    );
  }
  lines.push('', 'Stop with Ctrl-C.', '');
  stdout.write(`${lines.join('\n')}\n`);
}

function stateLines({ version, seconds, workers: count, refusal, missing }: Banner): string[] {
  const workers = counted(count, 'worker');
  if (refusal === undefined) {
    return [`Millrace ${version} is ready after ${seconds.toFixed(1)} s (${workers}).`, ...missingLines(missing)];
  }
  return [
    `Millrace ${version} is up after ${seconds.toFixed(1)} s (${workers}), but refuses telemetry:`,
    `  ${refusal}`,
    '  A line says when telemetry is accepted. /readyz answers 503 until then.',
    ...missing.filter((reason) => reason !== refusal).map((reason) => `  Degraded           ${reason}`),
  ];
}

function acknowledgedWhen({ ack, streamUrl }: Banner): string {
  switch (ack) {
    case 'memory':
      return 'before the sync: a crash loses the last messages';
    case 'journal':
      return 'when synced to the disk of this host';
    case 'store':
      return 'when stored by ClickHouse';
    case 'stream':
      return `when synced by most servers of ${streamUrl}`;
  }
}

function missingLines(missing: string[]): string[] {
  if (missing.length === 0) return [];
  return [
    '',
    ...missing.map((reason) => `  Degraded           ${reason}`),
    '                     Telemetry of known devices is accepted. /readyz names what remains.',
  ];
}

function warningLines(warnings: string[]): string[] {
  return warnings.length === 0 ? [] : ['', ...warnings.map((warning) => `  Warning            ${warning}`)];
}

function monitorUrl({ monitorAddress, monitorPort }: Banner): string {
  return `http://${monitorAddress === '127.0.0.1' ? monitorAddress : reachable(monitorAddress)}:${monitorPort}`;
}

function reportsUrl({ analyticsAddress, analyticsPort }: Banner): string {
  return `http://${reachable(analyticsAddress)}:${analyticsPort}/apiAnalytics`;
}

/** Returns the host of a URL with which this machine reaches a port that is bound to this address. */
function reachable(bound: string): string {
  if (['0.0.0.0', '::', '127.0.0.1', '::1'].includes(bound)) return 'localhost';
  return bound.includes(':') ? `[${bound}]` : bound;
}

function mqttAddresses(banner: Banner): string[] {
  const { address, port, mqttAddress, mqttPort, mqttsAddress, mqttsPort, mqttPath } = banner;
  const addresses = [`mqtt://${reachable(mqttAddress)}:${mqttPort}`];
  if (mqttsPort) addresses.push(`mqtts://${reachable(mqttsAddress)}:${mqttsPort}`);
  if (mqttPath) addresses.push(`ws://${reachable(address)}:${port}${mqttPath}`);
  return addresses;
}

function passwordLine({ adminPassword, adminCreated, isShared, dataPath }: Banner): string {
  if (adminPassword) return `password ${adminPassword}   (shown this once; kept in ${dataPath}/secrets.json)`;
  if (adminCreated) return 'password as you set it (ADMIN_PASSWORD)';
  const path = isShared ? 'secrets.json in DATA_DIR of the host that started first' : `${dataPath}/secrets.json`;
  return `password of the first start, unless it was changed (a generated one is in ${path})`;
}
