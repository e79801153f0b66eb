/**
 * Waits, for `npm run backup`, until ClickHouse has what the streams hold now. A backup has no copy of the streams, so
 * everything that was acknowledged before it began must be in the stores that it saves.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { messageOf, StartError } from '../base/errors.ts';
import { lanes } from '../journal/journal.ts';
import { StreamLink } from './stream-link.ts';
import { type StreamSettings, streamName } from './stream-names.ts';

const pollMs = 200;

/** Throws a StartError when the time is over, or when the streams cannot be read. */
export async function awaitStored(settings: StreamSettings, msMax: number): Promise<void> {
  let link: StreamLink | undefined;
  try {
    link = await StreamLink.open(settings, 'millrace backup');
    const deadline = performance.now() + msMax;
    for (const lane of lanes) {
      const name = streamName(settings, lane);
      const { first, last } = await link.laneState(name);
      for (;;) {
        const { floor } = await link.consumerState(name);
        if (Math.max(floor, first - 1) >= last) break;
        if (performance.now() > deadline) {
          throw new StartError(
            `The stream ${name} holds ${last - floor} frames that ClickHouse does not have, and a backup has no copy of ` +
              'them: start the backup again when ClickHouse has taken them (millrace_stream_frames).',
          );
        }
        await sleep(pollMs);
      }
    }
  } catch (error) {
    if (error instanceof StartError) throw error;
    throw new StartError(`The streams cannot be read, and a backup has no copy of their frames: ${messageOf(error)}.`);
  } finally {
    await link?.close().catch(() => {});
  }
}
