/**
 * The metrics of ingest up to the acknowledgement. Nothing here runs for a single message: counters are increased once
 * for each commit.
 */
import type { Clock } from '../base/clock.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics/metrics.ts';
import type { TakesFrames } from '../journal/seam.ts';

interface IngestMetricsDeps {
  journal: Pick<TakesFrames, 'backlogDiskBytes'>;
  clock: Pick<Clock, 'monotonic'>;
  metrics: Metrics;
  backlogBytesMax: number;
  freeDiskBytesMin: number;
}

export class IngestMetrics {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #messages: Counter;
  readonly #points: Counter;
  readonly #ackSeconds: Histogram;
  readonly #syncSeconds: Histogram;

  constructor(deps: IngestMetricsDeps, unsyncedBytes: () => number) {
    const { journal, clock, metrics, backlogBytesMax, freeDiskBytesMin } = deps;
    this.#clock = clock;
    this.#messages = metrics.counter('ingest_messages_total', 'Messages made durable.');
    this.#points = metrics.counter('ingest_datapoints_total', 'Data points made durable.');
    this.#ackSeconds = metrics.histogram(
      'ingest_ack_seconds',
      'From the first message of a commit to its acknowledgement.',
    );
    this.#syncSeconds = metrics.histogram('wal_fsync_seconds', 'Write and sync of one commit.');
    const backlog = () => journal.backlogDiskBytes;
    metrics.observed('journal_backlog_bytes', 'Bytes of segments that hold what waits for ClickHouse.', backlog);
    const capHelp =
      'Limit of these bytes, of all journals. Each worker refuses telemetry when its own journal is full.';
    metrics.observed('journal_backlog_bytes_max', capHelp, () => backlogBytesMax);
    const freeHelp = 'Telemetry is refused while the disk of the journal has less free bytes.';
    metrics.observed('journal_disk_free_bytes_min', freeHelp, () => freeDiskBytesMin, 'max');
    metrics.observed('ingest_unsynced_bytes', 'Bytes that wait for a sync.', unsyncedBytes);
  }

  /** Called when a commit is durable. */
  durable({ messages, points }: { messages: number; points: number }): void {
    this.#messages.add(messages);
    this.#points.add(points);
  }

  /** `started`: the monotonic time at which the write began. */
  synced(started: number): void {
    this.#syncSeconds.observe((this.#clock.monotonic() - started) / 1000);
  }

  /** `since`: the monotonic time of the first message of the commit. */
  acknowledged(messages: number, since: number): void {
    this.#ackSeconds.observeMany((this.#clock.monotonic() - since) / 1000, messages);
  }
}
