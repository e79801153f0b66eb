/**
 * Checks that the login may take and confirm frames. The servers do not answer a message that the permissions of its
 * login forbid, so frames would wait for ever, or would be given again and again.
 */
import { StartError } from '../base/errors.ts';
import { lanes } from '../journal/journal.ts';
import { permissionReason } from './connect-reason.ts';
import type { StreamLink } from './stream-link.ts';
import { consumerName, type StreamSettings, streamName } from './stream-names.ts';

/** Throws a StartError with the first subject to which the login may not publish. */
export async function checkRights(link: StreamLink, settings: StreamSettings): Promise<void> {
  const messages = lanes.flatMap((lane): [string, string][] => {
    const consumer = `${streamName(settings, lane)}.${consumerName}`;
    return [
      // The servers carry out no request that has no subject for its answer.
      [`$JS.API.CONSUMER.MSG.NEXT.${consumer}`, '1'],
      // "+WPI" says that work on a message goes on, and no message has the number 0.
      [`$JS.ACK.${consumer}.0.0.0.0.0`, '+WPI'],
    ];
  });
  const [violation] = await link.violationsOf(messages);
  if (violation !== undefined) throw new StartError(`STREAM_URL: ${permissionReason(violation)}.`);
}
