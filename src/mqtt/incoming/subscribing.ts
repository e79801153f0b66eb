/** SUBSCRIBE and UNSUBSCRIBE of a session: their answers, and the streams that they switch on and off. */
import type { Admission } from '../../activity/admission.ts';
import { Fault } from '../../base/errors.ts';
import type { Client } from '../packets/client.ts';
import { readSubscribe, readUnsubscribe, subackBytes, unsubackBytes } from '../packets/subscribe.ts';
import type { Session } from '../session/session.ts';
import type { StreamName } from '../session/subscriptions.ts';
import { reasonOf, subscribe, subscribeRefused, unsubscribe } from '../topics/grants.ts';
import type { Stream, Streams, TopicTable } from '../topics/table.ts';
import type { ReceivedPackets } from '../wire/received-packets.ts';

interface StreamDeps {
  topics: TopicTable;
  provisionTopics: TopicTable;
  streams: Streams;
  admission: Admission;
}

type Send = (packet: Buffer) => void;

const tooManyMessages = 'Too many messages of the device; subscribe again later.';

/** Handles the SUBSCRIBE that `received` holds. SUBACK comes first; a stream that starts may end the session. */
export function takeSubscribe(
  deps: StreamDeps,
  session: Session,
  client: Client,
  received: ReceivedPackets,
  send: Send,
): void {
  const { streams, admission } = deps;
  const { level } = session;
  const packet = readSubscribe(received.buffer, received.start, received.end, level);
  if (!tryCharge(admission, session)) {
    send(subackBytes(client, packet.packetId, subscribeRefused(level, packet.filters.length), tooManyMessages));
    return;
  }
  const { codes, started, restarted } = subscribe(session, packet, answersOf(deps, session));
  send(subackBytes(client, packet.packetId, codes, reasonOf(codes, packet)));
  stopStreams(streams, session, restarted);
  for (const name of started) if (session.endedBy === undefined) streamOf(streams, session, name)?.start(session);
}

/** Handles the UNSUBSCRIBE that `received` holds. */
export function takeUnsubscribe(deps: StreamDeps, session: Session, received: ReceivedPackets, send: Send): void {
  const { level } = session;
  const packet = readUnsubscribe(received.buffer, received.start, received.end, level);
  const { codes, stopped } = unsubscribe(session, packet, answersOf(deps, session));
  stopStreams(deps.streams, session, stopped);
  send(unsubackBytes(level, packet.packetId, codes));
}

/** Called when the session ends. */
export function stopAllStreams({ streams }: Pick<StreamDeps, 'streams'>, session: Session): void {
  stopStreams(streams, session, session.subscriptions.streams());
}

function answersOf({ topics, provisionTopics }: StreamDeps, { kind }: Session): readonly string[] {
  return kind === 'provision' ? provisionTopics.answers : topics.answers;
}

function stopStreams(streams: Streams, session: Session, names: StreamName[]): void {
  for (const name of names) streamOf(streams, session, name)?.stop(session);
}

/** Returns undefined for a stream of gateways on another device, which may subscribe to its topics and gets nothing. */
function streamOf(streams: Streams, session: Session, name: StreamName): Stream | undefined {
  return name.startsWith('gateway') && session.kind !== 'gateway' ? undefined : streams[name];
}

/**
 * Counts the packet as a message; returns false above the rate limit. A provisioning session has no device to count.
 */
function tryCharge(admission: Admission, { kind, device }: Session): boolean {
  if (kind === 'provision') return true;
  try {
    admission.message(device);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return false;
  }
  return true;
}
