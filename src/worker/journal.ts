/** The journal of a worker and, with `STREAM_URL`, its replicated stream; and the order numbers of what it writes. */
import { hostname } from 'node:os';
import { join } from 'node:path';
import { systemClock as clock, clockStepMs } from '../base/clock.ts';
import { StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { reopenCovering } from '../erase/tombstone-store.ts';
import { readHighOrders } from '../ingest/journal-store.ts';
import { OrderClock, orderMs } from '../ingest/order-number.ts';
import { writerIdOf } from '../ingest/writer-id.ts';
import { checkInstance, instanceVariable } from '../instance/host/data-directory.ts';
import { journalDirectory, journalName } from '../instance/host/data-files.ts';
import type { PrimaryLink } from '../instance/processes/primary-link.ts';
import type { Journal } from '../journal/journal.ts';
import { openJournal } from '../journal/open-journal.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { type OpenedStream, openStream } from '../stream/open-stream.ts';
import type { WorkerDeps } from './worker-deps.ts';

export interface OpenedJournal {
  journal: Journal;
  stream: OpenedStream | undefined;
  /** The writer id of the journal. */
  writer: number;
  orders: OrderClock;
}

/** `onFrame` is called when the stream has received a frame, which may be before this resolves. */
export async function openWorkerJournal(
  deps: WorkerDeps,
  postgres: Postgres,
  onFrame: () => void,
): Promise<OpenedJournal> {
  const { link, log } = deps;
  const { dir, journal } = await openOwnJournal(deps);
  const stream = await openOwnStream(deps, postgres, journal, onFrame);
  const writer = await writerIdOf({ journal, dir, postgres, onWaiting: (reason) => link.waiting(reason) });
  const orders = await openOrders({ writer, journal, stream, postgres, log });
  return { journal, stream, writer, orders };
}

async function openOwnJournal({ link, begin, config, log, metrics, started }: WorkerDeps) {
  checkInstance(config.data.dir, process.env[instanceVariable]);
  const dir = join(config.data.dir, journalDirectory, journalName(begin.slot));
  const { ack, journal: settings, quarantine } = config.ingest;
  const journal = await openJournal({
    dir,
    log,
    metrics,
    segmentBytes: settings.segmentBytes,
    durable: ack === 'memory' ? 'none' : 'sync',
    freeBytesMin: Math.floor(settings.freeDiskBytesMin / 2),
    quarantineBytesMax: quarantine.bytesMax,
    installation: begin.installation,
    locked: true,
    onLost: (reason) => failJournal(link, log, reason),
  });
  started.addWhole('end of the journal', () => journal.close());
  return { dir, journal };
}

/** Opens the replicated stream; undefined when there is none. */
async function openOwnStream(
  deps: WorkerDeps,
  postgres: Postgres,
  journal: Journal,
  onFrame: () => void,
): Promise<OpenedStream | undefined> {
  const { begin, config, log, metrics, started } = deps;
  if (config.stream.url === '') return undefined;
  const stream = await openStream({
    settings: config.stream,
    installation: begin.installation,
    name: `millrace ${hostname()} worker-${begin.slot}`,
    journal,
    postgres,
    clock,
    log,
    metrics,
    isLeader: () => isLeading(deps),
    isAccepting: config.ingest.ack === 'stream',
    onFrame,
    reopenDeletes: (...frames) => reopenCovering(postgres, ...frames),
  });
  started.addWhole('end of the stream', () => stream.close());
  return stream;
}

/** True while this worker leads those of its host. */
export function isLeading({ link, begin }: WorkerDeps): boolean {
  return link.state.leader === begin.slot;
}

interface OrdersDeps {
  writer: number;
  journal: Journal;
  stream: OpenedStream | undefined;
  postgres: Queries;
  log: Log;
}

/** Makes the clock of order numbers, which continues after every order that this writer has used. */
async function openOrders({ writer, journal, stream, postgres, log }: OrdersDeps): Promise<OrderClock> {
  const orderMax = stream ? await highestOrder(postgres, writer, journal.orderMax) : journal.orderMax;
  const leadMs = orderMs(orderMax) - clock.now();
  // An earlier run without the database used a clock that was ahead; a journal's order numbers never go back.
  if (leadMs > clockStepMs) log.warn('order_ahead', { leadSeconds: Math.round(leadMs / 1000) });
  return new OrderClock(clock, writer, orderMax);
}

/**
 * Returns the highest order that is known of this writer. Frames of an earlier run are not in its journal but in the
 * stream; after a clock that was set back, new frames get higher orders.
 */
async function highestOrder(postgres: Queries, writer: number, journaled: bigint): Promise<bigint> {
  try {
    const known = (await readHighOrders(postgres)).find((row) => row.writer === writer);
    const reported = BigInt(known?.orderHigh ?? 0);
    return reported > journaled ? reported : journaled;
  } catch (error) {
    if (!isAway(error)) throw error;
    return journaled;
  }
}

/** The disk of the journal failed twice: nothing that is accepted now could be kept. */
export function failJournal(link: PrimaryLink, log: Log, reason: string): void {
  log.error('journal_failed', { reason });
  void link.failed(new StartError(`the journal cannot be written: ${reason}`));
  systemScheduler.after(100, () => process.exit(1));
}
