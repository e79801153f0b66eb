/** What every connection of the worker shares. */

import type { Admission } from '../activity/admission.ts';
import type { Clock } from '../base/clock.ts';
import type { Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Addresses } from './addresses.ts';
import type { Counters } from './counters.ts';
import type { Flusher } from './flusher.ts';
import type { JournalWaiters } from './journal-waiters.ts';
import type { Session } from './session.ts';
import type { SignIn } from './sign-in.ts';
import type { Streams, TopicTable } from './topics/table.ts';

/** What a connection may send; both are announced to MQTT 5 clients. */
export interface ConnectionCaps {
  packetBytesMax: number;
  /** Messages that wait for their answer. */
  inflightMax: number;
}

export interface MqttSettings extends ConnectionCaps {
  /** Its name, for MQTT 5 clients (`http.tellWorker`); '' = not sent. */
  worker: string;
  /** Open connections of one network address. */
  connectionsPerAddressMax: number;
  /** Silence that ends a connection without Keep Alive. 0 = never. */
  idleMs: number;
  /** What cannot be read ends an MQTT 3 connection. */
  closeOnInvalid: boolean;
}

/** What the rest of the worker gives to the door. */
export interface MqttDeps {
  settings: MqttSettings;
  signIn: SignIn;
  /** True for an address that many clients share. */
  isTrustedProxy: (address: string) => boolean;
  topics: TopicTable;
  /** Topics of connections that ask for credentials. */
  provisionTopics: TopicTable;
  streams: Streams;
  /** Signed in, before its first message. */
  onSession?: (session: Session) => void;
  admission: Admission;
  /** Why the journal takes nothing at the moment. */
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
  /** The transport of a connection is closed and all that it brought is handled. May come twice. */
  left: (connection: object) => void;
}
