/**
 * The metrics of the host that no worker knows: version, disk of DATA_DIR, embedded stores, parts of the tables, and
 * certificates. `refresh` reads the metrics for each scrape, with a deadline; the primary takes no traffic that could
 * wait.
 */
import { X509Certificate } from 'node:crypto';
import { statSync } from 'node:fs';
import { readFile, statfs } from 'node:fs/promises';
import { dayMs } from '../../base/durations.ts';
import type { Metrics } from '../../base/metrics/metrics.ts';
import { usageOfTree } from '../../base/metrics/process-usage.ts';
import { liveProcess } from '../../base/process-file.ts';
import type { Config } from '../../base/settings/config.ts';
import { ownVersion } from '../../base/version.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { type PartsOfTables, partsOfTables } from '../../clickhouse/parts-statements.ts';
import type { DataDirectory } from '../host/data-directory.ts';

interface HostMetricsDeps {
  config: Config;
  data: DataDirectory;
  clickhouse: ClickHouse;
  isClickHouseUp: () => boolean;
  metrics: Metrics;
}

const partsMsMax = 1_000;

export class HostMetrics {
  readonly #deps: HostMetricsDeps;
  readonly #certificates: CertificateFile[] = [];
  #disk = { free: 0, size: 0 };
  #parts: PartsOfTables = { parts: 0, partsOfPartitionMax: 0, bytes: 0, merges: 0 };

  constructor(deps: HostMetricsDeps) {
    this.#deps = deps;
    const { metrics, config } = deps;
    const gauge = (name: string, help: string, read: () => number, labels: Record<string, string> = {}) =>
      metrics.observed(name, help, read, 'max', labels);
    gauge('build_info', 'The version of Millrace, and of Node.', () => 1, {
      version: ownVersion(),
      node: process.version,
    });
    gauge('data_disk_free_bytes', 'Free bytes of the disk of DATA_DIR.', () => this.#disk.free);
    gauge('data_disk_size_bytes', 'Size of the disk of DATA_DIR.', () => this.#disk.size);
    gauge('clickhouse_parts', 'Parts of all tables of Millrace.', () => this.#parts.parts);
    const most =
      'Parts of the partition that has most; ClickHouse refuses inserts at its limit (parts_to_throw_insert).';
    gauge('clickhouse_partition_parts_max', most, () => this.#parts.partsOfPartitionMax);
    gauge('clickhouse_table_bytes', 'Bytes of the tables of Millrace on the disk.', () => this.#parts.bytes);
    gauge('clickhouse_merges', 'Merges that run.', () => this.#parts.merges);
    if (config.clickhouse.url === '') this.#observeStore('clickhouse');
    if (config.postgres.url === '') this.#observeStore('postgres');
    if (config.ssl.enabled) this.#observeCertificate('https', config.ssl.cert);
    if (config.mqtt.enabled && config.mqtt.ssl.enabled) this.#observeCertificate('mqtts', config.mqtt.ssl.cert);
  }

  /** A value that cannot be read keeps its last state. */
  async refresh(): Promise<void> {
    const { clickhouse, isClickHouseUp, data } = this.#deps;
    await Promise.allSettled([
      ...this.#certificates.map((certificate) => certificate.refresh()),
      statfs(data.path).then(({ bavail, blocks, bsize }) => {
        this.#disk = { free: bavail * bsize, size: blocks * bsize };
      }),
      isClickHouseUp()
        ? partsOfTables(clickhouse, partsMsMax).then((parts) => {
            this.#parts = parts;
          })
        : undefined,
    ]);
  }

  #observeStore(store: string): void {
    const { metrics, data } = this.#deps;
    const usage = () => {
      const pid = liveProcess(data.processFile(store));
      return pid === undefined ? undefined : usageOfTree(pid);
    };
    const memory = () => usage()?.residentBytes ?? 0;
    metrics.observed('store_resident_memory_bytes', 'Memory of an embedded store.', memory, 'max', { store });
    const cpu = () => usage()?.cpuSeconds ?? 0;
    metrics.counted('store_cpu_seconds_total', 'CPU time of an embedded store since its start.', cpu, { store });
  }

  #observeCertificate(door: string, path: string): void {
    const certificate = new CertificateFile(path);
    this.#certificates.push(certificate);
    const help = 'Days until the certificate of a door, or of the servers of the stream, ends; negative afterwards.';
    this.#deps.metrics.observed('tls_certificate_days_left', help, () => certificate.daysLeft, 'max', { door });
  }
}

/** A certificate on the disk, read again when the file changes. */
class CertificateFile {
  readonly #path: string;
  #changedMs = 0;
  #endsMs = 0;

  constructor(path: string) {
    this.#path = path;
  }

  get daysLeft(): number {
    return (this.#endsMs - Date.now()) / dayMs;
  }

  async refresh(): Promise<void> {
    const { mtimeMs } = statSync(this.#path);
    if (mtimeMs === this.#changedMs) return;
    const { validTo } = new X509Certificate(await readFile(this.#path));
    this.#changedMs = mtimeMs;
    this.#endsMs = Date.parse(validTo);
  }
}
