/** The one entry: `node dist/main.js` becomes the primary, which forks its workers from the same file. */
import cluster from 'node:cluster';
import { StartError } from './base/errors.ts';
import { checkFileLimit, checkPlatform } from './instance/host/platform.ts';

// The reader of stderr may leave, and its disk may be full: the service goes on.
process.stderr.on('error', () => {});

async function main(): Promise<void> {
  if (cluster.isPrimary) {
    checkPlatform();
    checkFileLimit();
    const { runPrimary } = await import('./primary.ts');
    await runPrimary();
  } else {
    const { runWorker } = await import('./worker.ts');
    await runWorker();
  }
}

main().catch((error: unknown) => {
  if (error instanceof StartError) {
    process.stderr.write(`millrace: ${error.message}\n`);
    process.exit(error.exitCode);
  }
  process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
  process.exit(70);
});
