/**
 * Directories below the temporary one that a scenario needs while it runs. Each is removed when this process exits,
 * too, because an interrupted run ends without the scenario.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface OwnDirectory {
  path: string;
  remove(): void;
}

/** `endServer` ends at once what runs in the directory, when this process exits before `remove`. */
export function ownDirectory(prefix: string, endServer: (path: string) => void = () => {}): OwnDirectory {
  const path = mkdtempSync(join(tmpdir(), prefix));
  // A server that is ending may still write for a moment.
  const removeAll = () => rmSync(path, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  const onExit = () => {
    endServer(path);
    removeAll();
  };
  process.once('exit', onExit);
  return {
    path,
    remove: () => {
      process.off('exit', onExit);
      removeAll();
    },
  };
}
