/**
 * Maps the topic of a PUBLISH to an operation. Exact topics are found by their bytes, without a string; prefixes end
 * before the argument. A topic of gateways is refused for other devices, and an unknown topic is refused with a reason.
 */
import { badRequest, Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Operation, Publish } from '../session/operation.ts';
import type { Session } from '../session/session.ts';
import type { StreamName } from '../session/subscriptions.ts';

/** The entries of each file of topics/: topic → operation, prefix (with its last slash) → operation. */
export interface TopicEntries {
  exact?: Record<string, Operation>;
  /** The largest packet of a gateway on each of these topics; on others `decodeInLoopBytesMax`. */
  bytesMax?: Record<string, number>;
  prefixes?: Record<string, Operation>;
  /** The topics of the answers, also as patterns with `+`. Clients may subscribe to them. */
  answers?: string[];
}

/**
 * A stream of messages that SUBSCRIBE switches on. `start` is called after SUBACK was sent, `stop` also at the end of
 * the session. A second subscription stops and starts the stream, so that waiting messages are offered again.
 * `subscriptions.topicOf` returns the topic of its messages.
 */
export interface Stream {
  start(session: Session): void;
  stop(session: Session): void;
}

export type Streams = Partial<Record<StreamName, Stream>>;

/** Returns the operation of a topic that a device profile adds for its devices; undefined for any other topic. */
export type ProfileOperation = (session: Session, topic: string) => Operation | undefined;

export interface ExactTopic {
  readonly topic: string;
  readonly bytes: Buffer;
  readonly operation: Operation;
  /** The largest packet of a gateway. */
  readonly bytesMax: number;
}

export class TopicTable {
  readonly exact = new Map<string, Operation>();
  readonly prefixes: { prefix: string; operation: Operation }[] = [];
  /** The answers of all entries. */
  readonly answers: string[] = [];
  readonly #byLength: (ExactTopic[] | undefined)[] = [];
  readonly #ofProfile: ProfileOperation | undefined;

  constructor(entries: TopicEntries[], ofProfile?: ProfileOperation) {
    this.#ofProfile = ofProfile;
    for (const { exact, prefixes, bytesMax, answers = [] } of entries) {
      this.answers.push(...answers);
      for (const [topic, operation] of Object.entries(exact ?? {})) {
        this.#addExact(topic, guarded(topic, operation), bytesMax?.[topic] ?? limits.decodeInLoopBytesMax);
      }
      for (const [prefix, operation] of Object.entries(prefixes ?? {})) {
        this.prefixes.push({ prefix, operation: guarded(prefix, operation) });
      }
    }
    // Longer prefixes first: `v2/r/req/j/` before `v2/r/req/`.
    this.prefixes.sort((a, b) => b.prefix.length - a.prefix.length);
  }

  /** Returns the exact topic with the bytes `bytes[start..end)`. */
  findExact(bytes: Buffer, start: number, end: number): ExactTopic | undefined {
    const candidates = this.#byLength[end - start];
    if (candidates === undefined) return undefined;
    for (const candidate of candidates) if (isSame(candidate.bytes, bytes, start)) return candidate;
    return undefined;
  }

  /** Finds the operation of a topic that is not exact. Throws a Fault for an unknown topic. */
  dispatch(publish: Publish): void {
    const { topic, session } = publish;
    for (const { prefix, operation } of this.prefixes) {
      if (!topic.startsWith(prefix)) continue;
      operation(publish, topic.slice(prefix.length));
      return;
    }
    const operation = this.exact.get(topic) ?? this.#ofProfile?.(session, topic);
    if (operation === undefined) throw unknown(topic, session);
    operation(publish, '');
  }

  #addExact(topic: string, operation: Operation, bytesMax: number): void {
    this.exact.set(topic, operation);
    const bytes = Buffer.from(topic);
    const candidates = this.#byLength[bytes.length] ?? [];
    candidates.push({ topic, bytes, operation, bytesMax });
    this.#byLength[bytes.length] = candidates;
  }
}

const gatewayTopics = 'v1/gateway';

function guarded(topic: string, operation: Operation): Operation {
  if (!topic.startsWith(gatewayTopics)) return operation;
  return (publish, argument) => {
    if (publish.session.kind !== 'gateway') throw notAGateway;
    operation(publish, argument);
  };
}

const notAGateway = new Fault(
  'not_a_gateway',
  'This device is no gateway: set `additionalInfo.gateway` of the device to true, and connect again.',
);

const unknownTopic = new Fault('unknown_topic', 'Unknown topic; check its spelling.');

function unknown(topic: string, { kind }: Session): Fault {
  return topic.startsWith(gatewayTopics) && kind !== 'gateway' ? notAGateway : unknownTopic;
}

/** On the short topics `/p` means Protobuf, which no profile of this server uses. */
export const protobufRefused: Operation = () => {
  throw badRequest('protobuf', 'Protobuf payloads are not supported: use the topic without /p and send JSON.');
};

/** Compares from the end, where topics differ. */
function isSame(expected: Buffer, bytes: Buffer, start: number): boolean {
  for (let i = expected.length - 1; i >= 0; i -= 1) if (expected[i] !== bytes[start + i]) return false;
  return true;
}
