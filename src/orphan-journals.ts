/**
 * Journals of worker slots that are not started any more (WORKERS was lowered): shipped by another worker, never
 * appended to, and removed when ClickHouse has everything.
 */
import { messageOf } from './base/errors.ts';
import { Metrics } from './base/metrics.ts';
import { Shipper, type ShipperOptions } from './ingest/ship.ts';
import { type Journal, openJournal } from './journal/journal.ts';

export type OrphanOptions = Omit<ShipperOptions, 'journal' | 'onShipped'> & { segmentBytes: number };

export function shipOrphan(dir: string, options: OrphanOptions): { stop(): Promise<void> } {
  const { log, segmentBytes } = options;
  let shipper: Shipper | undefined;
  let journal: Journal | undefined;
  const discardWhenEmpty = async () => {
    if (!journal?.empty) return;
    const emptied = journal;
    journal = undefined;
    await shipper!.stop();
    await emptied.discard();
    log.info('orphan_journal_shipped', { dir });
  };
  const done = () =>
    discardWhenEmpty().catch((error) => log.error('orphan_journal', { dir, reason: messageOf(error) }));
  const opened = (async () => {
    journal = await openJournal({ dir, log, segmentBytes, adopt: true });
    shipper = new Shipper({ ...options, metrics: new Metrics(), journal, onShipped: () => setImmediate(done) });
    shipper.start();
    await done();
  })().catch((error: unknown) => log.error('orphan_journal', { dir, reason: messageOf(error) }));
  return {
    stop: async () => {
      await opened;
      await shipper?.stop();
      await journal?.close();
    },
  };
}
