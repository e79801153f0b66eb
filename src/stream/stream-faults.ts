/** The refusals of `ingest.ack: stream`. */
import { type Fault, tooLarge, unavailable } from '../base/errors.ts';
import { sizeText } from '../base/size-text.ts';

export function streamFull(bytesMax: number): Fault {
  const message =
    `ClickHouse has not taken data for so long that the stream holds its limit of ${sizeText(bytesMax)} ` +
    '(STREAM_BYTES_MAX), or its servers have no room (max_file_store).';
  return unavailable('stream_full', message, 5);
}

export function streamAway(why: string): Fault {
  const message =
    `The replicated stream does not accept frames (${why}); send again. A message that was refused at this moment may ` +
    'still be stored; sending it again is harmless when it has a "ts".';
  return unavailable('stream_away', message, 2);
}

export function streamSlow(): Fault {
  return unavailable('stream_slow', 'The replicated stream is too slow for what comes in; send again.');
}

export function frameTooLarge(bytes: number, bytesMax: number): Fault {
  const message =
    `A value of this message needs ${sizeText(bytes)}, and the servers of the stream take ${sizeText(bytesMax)} ` +
    '(max_payload); send smaller values.';
  return tooLarge('stream_frame_size', message);
}
