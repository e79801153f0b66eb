/** The collaborators and settings that all connections of the worker share. */

import type { Admission } from '../activity/admission.ts';
import type { Clock } from '../base/clock.ts';
import type { Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Troubles } from '../diagnostics/troubles.ts';
import type { Addresses } from './flow/addresses.ts';
import type { Counters } from './flow/counters.ts';
import type { JournalWaiters } from './flow/journal-waiters.ts';
import type { PacketRoom } from './flow/packet-room.ts';
import type { TooLargeLog } from './flow/too-large-log.ts';
import type { Flusher } from './outgoing/flusher.ts';
import type { Session } from './session/session.ts';
import type { SignIn } from './sign-in/sign-in.ts';
import type { Streams, TopicTable } from './topics/table.ts';

/** Caps of a connection, by the role of its session, which CONNACK announces to MQTT 5 clients. */
export interface ConnectionCaps {
  packetBytesMax: number;
  /** Messages that wait for their answer. */
  inflightMax: number;
}

interface MqttSettings extends ConnectionCaps {
  /** Caps of gateways. A packet above the `packetBytesMax` of other clients must be a PUBLISH (`large-packets.ts`). */
  gateway: ConnectionCaps;
  /** The name of the worker for MQTT 5 clients (`http.tellWorker`); '' = not sent. */
  worker: string;
  /** The server that MQTT 5 clients are handed over to; '' = not sent. */
  serverReference: string;
  /** Open connections of one network address. */
  connectionsPerAddressMax: () => number;
  /** Milliseconds of silence that end a connection without Keep Alive. 0 = never. */
  idleMs: number;
  /** True: a message that cannot be decoded ends an MQTT 3 connection. */
  closeOnInvalid: boolean;
}

/** The collaborators that the worker passes to the door. */
export interface MqttDeps {
  settings: MqttSettings;
  signIn: SignIn;
  /** True for an address that many clients share. */
  isTrustedProxy: (address: string) => boolean;
  topics: TopicTable;
  /** Topics of connections that request credentials. */
  provisionTopics: TopicTable;
  streams: Streams;
  /** Called after the sign-in, before the first message. */
  onSession?: (session: Session) => void;
  admission: Admission;
  /** Records refusals and ends of connections. */
  troubles: Troubles;
  /** Room for the large packets of gateways. */
  packetRoom: PacketRoom;
  /** Returns the reason why the journal refuses messages; undefined when it accepts. */
  journalRefusal: () => Fault | undefined;
  clock: Clock;
  log: Log;
}

export interface ConnectionDeps extends MqttDeps {
  counters: Counters;
  flusher: Flusher;
  journalWaiters: JournalWaiters;
  addresses: Addresses;
  /** Caps of connections without credentials. */
  provisioningCaps: ConnectionCaps;
  tooLargeLog: TooLargeLog;
  /** Called when the transport is closed and all received packets are handled. May be called twice. */
  left: (connection: object) => void;
}
