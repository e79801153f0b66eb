/**
 * What the other rooms need of a journal: ingest appends frames, shipping takes units. The journal on the local disk
 * (`journal.ts`) and the replicated stream (`stream/stream-journal.ts`) are the two implementations, with one test
 * (`test/contract/journal.test.ts`).
 */
import type { Journal } from './journal.ts';
import type { Notes } from './ship-notes.ts';

/** Takes frames: a resolved `append` means that they are durable as `ingest.ack` says. */
export type TakesFrames = Pick<
  Journal,
  'append' | 'backlogDiskBytes' | 'freeBytes' | 'laneShipped' | 'rowsWaiting' | 'orderMax'
>;

/** Returns units of frames, each until it is confirmed. A later opening returns again what was not confirmed. */
export type GivesUnits = Pick<
  Journal,
  | 'next'
  | 'confirm'
  | 'rowsWaiting'
  | 'rowsUntaken'
  | 'bytesWaiting'
  | 'oldestWaitingAt'
  | 'oldestUntakenAt'
  | 'oldestUnshippedMs'
  | 'backlogBytes'
  | 'orderMax'
  | 'orderRecovered'
  | 'laneShipped'
  | 'laneTaken'
  | 'suspects'
  | 'shardBacklog'
  | 'quarantine'
> & { readonly notes: Notes };
