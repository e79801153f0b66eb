/**
 * Requests in the line protocol of InfluxDB: the records of `requests.ts`, a line for each device, several devices in a
 * message. Made once; between two sends only digits change in place.
 */
import { MovingRecord, wanderingDigits } from '../moving-record.ts';
import type { Requests } from '../one-in-flight.ts';

export const lineDatabase = 'bench';
export const lineMeasurement = 'telemetry';

/** Whole numbers have an `i`: InfluxDB stores them as such. */
function lineText(token: string, ts: number): string {
  const fields = 'temperature=21.50,humidity=48.20,pressure=1013.25,battery=87i';
  return `${lineMeasurement},device=${token} ${fields} ${ts}\n`;
}

export class LinesRequest implements Requests {
  /** Of the first device. */
  readonly token: string;
  readonly #bytes: Buffer;
  readonly #records: MovingRecord[];
  #sent = 0;

  constructor(tokens: string[], { firstTs, stepMs }: { firstTs: number; stepMs: number }, seed: number) {
    this.token = tokens[0]!;
    const lines = tokens.map((token) => lineText(token, firstTs - stepMs));
    const body = lines.join('');
    const head =
      `POST /write?db=${lineDatabase}&precision=ms HTTP/1.1\r\nHost: localhost\r\n` +
      `Content-Type: text/plain\r\nContent-Length: ${body.length}\r\n\r\n`;
    this.#bytes = Buffer.from(head + body);
    let end = head.length;
    this.#records = lines.map((line, n) => {
      const begin = end;
      end += line.length;
      const tsAt = begin + line.lastIndexOf(' ') + 1;
      const digits = wanderingDigits(this.#bytes, tsAt, begin, tsAt);
      return new MovingRecord(this.#bytes, tsAt, stepMs, seed + 7919 * n, digits);
    });
  }

  get sent(): number {
    return this.#sent;
  }

  /** The ts of the last message. */
  get ts(): number {
    return this.#records[0]!.ts;
  }

  next(): Buffer {
    for (const record of this.#records) record.move();
    this.#sent += 1;
    return this.#bytes;
  }
}
