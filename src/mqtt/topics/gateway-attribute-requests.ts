/**
 * `v1/gateway/attributes/request`: a gateway asks for attributes of one of its devices. The request is answered on
 * `…/attributes/response`, subscribed or not, and acknowledged after its answer was sent.
 */
import type { Admission } from '../../activity/admission.ts';
import type { Attributes, ScopedRow } from '../../attributes/attributes.ts';
import { scopesAndKeys } from '../../attributes/request.ts';
import { attributeAnswer, readAttributeRequest } from '../../gateway/requests.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { run } from '../session/operation.ts';
import { sendAnswer } from './answer.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayAttributeRequestsDeps {
  admission: Admission;
  attributes: Attributes;
  readBody: ReadBody;
}

const responseTopic = 'v1/gateway/attributes/response';

export function gatewayAttributeRequestTopics(
  sessions: GatewaySessions,
  { admission, attributes, readBody }: GatewayAttributeRequestsDeps,
): TopicEntries {
  return {
    exact: {
      'v1/gateway/attributes/request': (publish) => {
        const { session, payload } = publish;
        const gateway = sessions.of(session);
        const request = readBody(payload, readAttributeRequest);
        admission.childMessage(session.device);
        gateway.run([{ name: request.device, type: '' }], (refused) => {
          run(publish, async () => {
            const fault = refused.get(request.device);
            if (fault) throw fault;
            const { device } = gateway.child(request.device)!;
            admission.touch(device);
            const { scopes, keys } = scopesAndKeys(request.wanted);
            const answer = (rows: ScopedRow[]) => sendAnswer(session, responseTopic, attributeAnswer(request, rows));
            if (keys?.length === 0) answer([]);
            else await attributes.readFor(gateway.device, device.number, scopes, keys, answer);
          });
        });
      },
    },
    answers: [responseTopic],
  };
}
