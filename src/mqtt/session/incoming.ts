/**
 * The pool of PUBLISH objects of a worker. A message takes an object and returns it after its answer, so load makes no
 * garbage. The objects also form the list of acknowledgements of their connection, which are sent in order of arrival.
 */
import { assert, type Fault } from '../../base/errors.ts';
import type { Room } from '../wire/large-packet.ts';
import type { Publish } from './operation.ts';
import type { Session } from './session.ts';

/** The receiver of answers: the inbox of the connection. */
export interface Answered {
  /** Called with the answer of a message; `fault` is undefined when the message was accepted. */
  answered(incoming: Incoming, fault: Fault | undefined): void;
}

const noPayload = Buffer.alloc(0);

export class Incoming implements Publish {
  topic = '';
  payload: Buffer = noPayload;
  isOwned = false;
  qos: 0 | 1 | 2 = 0;
  session: Session = undefined as unknown as Session;
  packetId = 0;
  readAt = 0;
  /** Undefined when the connection ended before the answer. */
  connection: Answered | undefined = undefined;
  isOpen = false;
  /** Reason code and Reason String of the answer. */
  code = 0;
  text = '';
  /** The receipt, as in `ingest/store-acks.ts`, which becomes a user property of the acknowledgement. */
  receipt: string | undefined = undefined;
  /** The room that the bytes of a large packet hold until the answer. */
  room: Room | undefined = undefined;
  /** The next object of the connection, or of the pool. */
  next: Incoming | undefined = undefined;

  get countsRefusals(): boolean {
    return true;
  }

  acknowledge(): void {
    this.#answer(undefined);
  }

  refuse(fault: Fault): void {
    this.#answer(fault);
  }

  #answer(fault: Fault | undefined): void {
    assert(this.isOpen, 'an MQTT message is answered once');
    this.isOpen = false;
    if (this.room !== undefined) {
      this.room.release();
      this.room = undefined;
    }
    const { connection } = this;
    if (connection === undefined) giveBack(this);
    else connection.answered(this, fault);
  }
}

let pool: Incoming | undefined;
let pooled = 0;
const pooledMax = 65_536;

export function takeIncoming(): Incoming {
  const incoming = pool ?? new Incoming();
  if (pool !== undefined) {
    pool = pool.next;
    pooled -= 1;
    incoming.next = undefined;
  }
  incoming.isOpen = true;
  incoming.code = 0;
  incoming.text = '';
  return incoming;
}

export function giveBack(incoming: Incoming): void {
  assert(incoming.session !== undefined, 'an MQTT message is given back once');
  incoming.connection = undefined;
  incoming.session = undefined as unknown as Session;
  incoming.payload = noPayload;
  incoming.topic = '';
  incoming.receipt = undefined;
  if (pooled >= pooledMax) return;
  incoming.next = pool;
  pool = incoming;
  pooled += 1;
}
