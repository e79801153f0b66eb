/** HAProxy and nginx in front of hosts, with the files of `ops/`. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { eventually } from './api.ts';
import { isPortOpen } from './ports.ts';

interface HostPorts {
  http: number;
  mqtt: number;
  mqtts: number;
  reports: number;
  monitor: number;
}

interface BalancerPorts {
  http: number;
  /** The port at which the balancer ends TLS. */
  https: number;
  mqtt: number;
  mqtts: number;
}

interface BalancerOptions {
  /** The address of the balancer that the hosts trust. */
  source: string;
  ports: BalancerPorts;
  /** Two; HAProxy also takes more. */
  hosts: HostPorts[];
  /** The balancer has its files there. */
  directory: string;
  /** Paths of PEM files. HAProxy without them has no port for HTTPS. */
  certificate?: { cert: string; key: string };
}

export class Balancer {
  readonly ports: BalancerPorts;
  readonly #child: ChildProcess;
  output = '';

  private constructor(ports: BalancerPorts, command: string, words: string[], environment: Record<string, string>) {
    this.ports = ports;
    const PATH = `${process.env['PATH']}:/usr/sbin`;
    this.#child = spawn(command, words, { env: { PATH, ...environment }, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.#child.stdout!, this.#child.stderr!]) {
      stream.on('data', (bytes: Buffer) => {
        this.output += bytes.toString();
      });
    }
  }

  static async haproxy({ source, ports, hosts, directory, certificate }: BalancerOptions): Promise<Balancer> {
    const ofHost = ({ http, mqtt, mqtts, reports, monitor }: HostPorts, at: number) => ({
      [`HOST${at + 1}_ADDRESS`]: '127.0.0.1',
      [`HOST${at + 1}_HTTP_PORT`]: String(http),
      [`HOST${at + 1}_MQTT_PORT`]: String(mqtt),
      [`HOST${at + 1}_MQTTS_PORT`]: String(mqtts),
      [`HOST${at + 1}_REPORTS_PORT`]: String(reports),
      [`HOST${at + 1}_MONITOR_PORT`]: String(monitor),
    });
    const file = join(directory, 'haproxy.cfg');
    writeFileSync(file, forHosts(readFileSync('ops/haproxy.cfg', 'utf8'), hosts.length));
    const words = ['-db', '-f', file];
    const pem = join(directory, 'haproxy.pem');
    if (certificate) {
      writeFileSync(pem, readFileSync(certificate.cert, 'utf8') + readFileSync(certificate.key, 'utf8'), {
        mode: 0o600,
      });
      words.push('-f', 'ops/haproxy-https.cfg');
    }
    const balancer = new Balancer(ports, 'haproxy', words, {
      HAPROXY_SOURCE: source,
      HAPROXY_ADDRESS: '127.0.0.1',
      HAPROXY_HTTP_PORT: String(ports.http),
      HAPROXY_HTTPS_PORT: String(ports.https),
      HAPROXY_MQTT_PORT: String(ports.mqtt),
      HAPROXY_MQTTS_PORT: String(ports.mqtts),
      HAPROXY_CERTIFICATE: pem,
      ...Object.assign({}, ...hosts.map(ofHost)),
    });
    return await balancer.#listening();
  }

  static async nginx({ source, ports, hosts, directory, certificate }: BalancerOptions): Promise<Balancer> {
    const { cert, key } = certificate!;
    let text = readFileSync('ops/nginx.conf', 'utf8');
    const replace = (from: string, to: string) => {
      if (!text.includes(from)) throw new Error(`ops/nginx.conf has no ${from}`);
      text = text.replaceAll(from, to);
    };
    for (const [at, { http, mqtt, mqtts, reports }] of hosts.entries()) {
      for (const [usual, port] of [
        [8080, http],
        [1883, mqtt],
        [8883, mqtts],
        [8888, reports],
      ]) {
        replace(`10.0.0.1${at + 1}:${usual}`, `127.0.0.1:${port}`);
      }
    }
    replace('10.0.0.10', source);
    replace('listen 80;', `listen 127.0.0.1:${ports.http};`);
    replace('listen 443 ssl;', `listen 127.0.0.1:${ports.https} ssl;`);
    replace('listen 1883;', `listen 127.0.0.1:${ports.mqtt};`);
    replace('listen 8883;', `listen 127.0.0.1:${ports.mqtts};`);
    replace('/etc/nginx/millrace.crt', cert);
    replace('/etc/nginx/millrace.key', key);
    // Two workers are enough here. Paths of the package are those of root.
    replace('worker_processes auto;', `worker_processes 2;\npid ${join(directory, 'nginx.pid')};`);
    const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
    replace('http {', `http {\n${kinds.map((kind) => `${kind}_temp_path ${join(directory, kind)};`).join('\n')}`);
    // As root, nginx runs its workers as another user.
    chmodSync(directory, 0o755);
    for (const kind of kinds) mkdirSync(join(directory, kind), { recursive: true });
    const file = join(directory, 'nginx.conf');
    writeFileSync(file, text);
    const words = ['-e', 'stderr', '-c', file, '-g', 'daemon off;'];
    return await new Balancer(ports, 'nginx', words, {}).#listening();
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exit = once(this.#child, 'exit');
    this.#child.kill('SIGTERM');
    await exit;
  }

  async #listening(): Promise<Balancer> {
    try {
      await eventually(async () => {
        if (this.#child.exitCode !== null) throw new Error(`the balancer ended: ${this.output}`);
        return await isPortOpen(this.ports.http);
      });
    } catch (error) {
      await this.stop();
      throw error;
    }
    return this;
  }
}

/** Returns a file for two hosts with the lines of further hosts. */
function forHosts(text: string, hosts: number): string {
  return text.replace(/^ +server host2 .*\n/gm, (line) => {
    const further = Array.from({ length: hosts - 2 }, (_, n) => line.replace(/(host)2/gi, `$1${n + 3}`));
    return [line, ...further].join('');
  });
}
