/** The refusals of `ingest.ack: stream`. */
import { Fault, tooLarge, unavailable } from '../base/errors.ts';
import { sizeText } from '../base/size-text.ts';
import { type Lane, laneNames, late } from '../journal/journal.ts';

/** Refuses late rows by a reason of their own, for which no client is paused: its live rows are accepted. */
export function ofLane(lane: Lane, fault: Fault): Fault {
  if (lane !== late || fault.status !== 503) return fault;
  return new Fault(
    'stream_late',
    `${fault.message} Only rows of other days than yesterday, today and tomorrow wait for it.`,
    fault.retryAfterSeconds,
  );
}

export function streamFull(lane: Lane): Fault {
  const message =
    `ClickHouse has not taken data for so long that the stream of ${laneNames[lane]} rows holds its limit ` +
    '(STREAM_BYTES_MAX), or its servers have no room (max_file_store).';
  return unavailable('stream_full', message, 5);
}

export function streamAway(why: string): Fault {
  const message =
    `The replicated stream does not accept frames (${why}); send again. A message that was refused at this moment may ` +
    'still be stored; sending it again is harmless when it has a "ts".';
  return unavailable('stream_away', message, 2);
}

export function streamSlow(lane: Lane): Fault {
  const message = `The replicated stream of ${laneNames[lane]} rows is too slow for what comes in; send again.`;
  return unavailable('stream_slow', message);
}

export function frameTooLarge(bytes: number, bytesMax: number): Fault {
  const message =
    `A value of this message needs ${sizeText(bytes)}, and the servers of the stream take ${sizeText(bytesMax)} ` +
    '(max_payload); send smaller values.';
  return tooLarge('stream_frame_size', message);
}
