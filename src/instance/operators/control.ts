/**
 * The commands of an operator that the primary answers over `DATA_DIR/run/control.sock`. `npm run backup` uses them. A
 * further command is one more entry of the table.
 */
import { join } from 'node:path';
import { listenControl } from '../../base/control-socket.ts';
import type { Config } from '../../base/settings/config.ts';
import { ownVersion } from '../../base/version.ts';
import type { JournalCut } from '../../journal/journal.ts';
import { runDirectory } from '../host/data-files.ts';
import type { JournalHold } from '../journals/journal-hold.ts';

export interface InstanceDescription {
  version: string;
  /** The settings that the instance runs with, secrets included. */
  config: Config;
}

export interface HeldJournals {
  /** Ends the hold, when passed to `releaseJournals`; the end of the connection ends the hold as well. */
  id: number;
  cuts: JournalCut[];
}

interface ControlDeps {
  dataDir: string;
  config: Config;
  journalHold: JournalHold;
}

export function controlPath(dataDir: string): string {
  return join(dataDir, runDirectory, 'control.sock');
}

export function answerControl({ dataDir, config, journalHold }: ControlDeps): Promise<{ close(): Promise<void> }> {
  return listenControl(controlPath(dataDir), {
    describe: async (): Promise<InstanceDescription> => ({ version: ownVersion(), config }),
    holdJournals: async (_argument, session): Promise<HeldJournals> => {
      const held = await journalHold.begin();
      session.onClosed(() => void journalHold.end(held.id));
      return held;
    },
    releaseJournals: async (id): Promise<boolean> => await journalHold.end(Number(id)),
  });
}
