/**
 * The topics of a provisioning connection (docs/mqtt.md#provisioning): /provision/request is answered on
 * /provision/response, subscribed or not, with the same answer as HTTP; any other topic ends the connection. Requests
 * of one connection run one after the other. `connection.ts` limits the lifetime and the packets of such a connection.
 */
import { asFault, badRequest, Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { type ProvisionDeps, provision } from '../../onboarding/provision.ts';
import { decodeProvision, type ProvisionOutcome, provisionJson } from '../../onboarding/provision-request.ts';
import type { ReadBody } from '../../value/lenient.ts';
import type { Operation, Publish } from '../session/operation.ts';
import type { Session } from '../session/session.ts';
import type { TopicEntries } from './table.ts';

const provisionRequestTopic = '/provision/request';
const provisionResponseTopic = '/provision/response';

export function provisionTopics(deps: ProvisionDeps, readBody: ReadBody): TopicEntries {
  const queues = new WeakMap<Session, RequestQueue>();
  const request: Operation = (publish) => {
    const { session } = publish;
    let queue = queues.get(session);
    if (!queue) {
      queue = new RequestQueue(deps, readBody, session);
      queues.set(session, queue);
    }
    queue.add(publish, Buffer.from(publish.payload));
  };
  const exact = { [provisionRequestTopic]: request };
  return { exact, prefixes: { '': refuseAndClose }, answers: [provisionResponseTopic] };
}

const otherTopic = new Fault(
  'provisioning_topic',
  `A provisioning connection may only publish to ${provisionRequestTopic}.`,
);

const refuseAndClose: Operation = (publish) => {
  const { session } = publish;
  publish.refuse(otherTopic);
  session.close('provisioning_topic');
};

/** The requests of one session. Each is answered after the one before. */
class RequestQueue {
  readonly #deps: ProvisionDeps;
  readonly #readBody: ReadBody;
  readonly #session: Session;
  #last: Promise<void> = Promise.resolve();

  constructor(deps: ProvisionDeps, readBody: ReadBody, session: Session) {
    this.#deps = deps;
    this.#readBody = readBody;
    this.#session = session;
  }

  add(publish: Publish, body: Buffer): void {
    this.#last = this.#last.then(() => this.#answer(publish, body));
  }

  async #answer(publish: Publish, body: Buffer): Promise<void> {
    try {
      if (this.#session.endedBy !== undefined) throw badRequest('provision_gone', 'The connection has ended.');
      if (body.length > limits.onboardingBodyBytesMax) throw badRequest('provision_size', 'The request is too long.');
      const outcome = await provision(this.#deps, decodeProvision(body, this.#readBody), this.#session.remoteAddress);
      publish.acknowledge();
      this.#send(outcome);
    } catch (error) {
      const fault = asFault(error);
      publish.refuse(fault);
      if (fault.status === 400) this.#send({ status: 'FAILURE' });
    }
  }

  #send(outcome: ProvisionOutcome): void {
    if (this.#session.endedBy !== undefined) return;
    const qos = this.#session.subscriptions.qosOf(provisionResponseTopic);
    this.#session.push(provisionResponseTopic, JSON.stringify(provisionJson(outcome)), qos);
  }
}
