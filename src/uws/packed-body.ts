/**
 * Unpacks the body of a request with `Content-Encoding` before its handler gets it. The cap of the route holds for the
 * packed and for the unpacked bytes. A larger body is unpacked beside the loop, after its sender is known, in the room
 * of that sender.
 */
import { encodings, readEncoding, unpack, unpackNow } from '../base/content-encoding.ts';
import { asFault } from '../base/errors.ts';
import { networkOf } from '../base/network.ts';
import { type BodyRules, bodiesInFlight, keepBody, passOwnBody } from './body.ts';
import { type Exchange, faultAnswer } from './exchange.ts';

interface PackedBody<Subject> {
  exchange: Exchange;
  encoding: string;
  subject: Subject;
  rules: BodyRules<Subject>;
  receive: (body: Buffer) => void;
}

/** Returns the receiver of a compressed body, or refuses the request for its encoding. */
export function unpacking<Subject>(
  exchange: Exchange,
  contentLength: number,
  contentEncoding: string,
  subject: Subject,
  rules: BodyRules<Subject>,
  receive: (body: Buffer) => void,
): ((body: Buffer) => void) | undefined {
  try {
    const encoding = readEncoding(contentEncoding);
    if (encoding === '') return receive;
    return (body) => takePacked({ exchange, encoding, subject, rules, receive }, body);
  } catch (error) {
    const fault = asFault(error);
    rules.onRefused?.(fault, subject, exchange);
    const answer = { ...faultAnswer(fault), headers: { 'Accept-Encoding': encodings } };
    rules.skipped.answer(exchange, contentLength, answer);
    return undefined;
  }
}

/** Takes the packed body, which may be valid during the call only. Calls `receive` once, or answers itself. */
function takePacked<Subject>(deps: PackedBody<Subject>, packed: Buffer): void {
  const { exchange, encoding, rules, receive } = deps;
  if (packed.length === 0) {
    receive(packed);
    return;
  }
  let body: Buffer | undefined;
  try {
    body = unpackNow(encoding, packed, rules.bytesMax);
  } catch (error) {
    refuse(deps, error);
    return;
  }
  if (body !== undefined) {
    receive(body);
    return;
  }
  let release = keepBody(exchange, packed);
  let kept = packed;
  if (!release) {
    const held = rules.room.ofStranger(exchange.remoteAddress());
    if (!held.grow(packed.length)) {
      refuse(deps, bodiesInFlight());
      return;
    }
    release = () => held.release();
    kept = Buffer.from(packed);
  }
  void takeLater(deps, kept).finally(release);
}

async function takeLater<Subject>(deps: PackedBody<Subject>, packed: Buffer): Promise<void> {
  const { exchange, encoding, subject, rules, receive } = deps;
  const { bytesMax, room, admit } = rules;
  const address = exchange.remoteAddress();
  let held = room.ofStranger(address);
  let body: Buffer;
  try {
    // The packed body holds room until it is unpacked: the sender has a second share for the unpacked one.
    const sender = admit ? await admit(subject, exchange) : '';
    if (admit) held = room.ofSender(`${sender}, unpacked`, address);
    const from = { owner: `address ${networkOf(address)}`, sender };
    body = await unpack(encoding, packed, bytesMax, from, (bytes) => !exchange.done && held.grow(bytes));
  } catch (error) {
    held.release();
    refuse(deps, error);
    return;
  }
  if (exchange.done) {
    held.release();
    return;
  }
  const release = (): void => held.release();
  exchange.releaseBody = release;
  passOwnBody(exchange, body, receive);
}

function refuse<Subject>({ exchange, subject, rules }: PackedBody<Subject>, error: unknown): void {
  if (exchange.done) return;
  const fault = asFault(error);
  rules.onRefused?.(fault, subject, exchange);
  exchange.refuse(fault);
}
