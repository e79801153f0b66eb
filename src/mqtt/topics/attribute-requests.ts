/**
 * Requests of a device for its attributes, `…/attributes/request/{id}`, answered on `…/attributes/response/{id}` of the
 * same family, subscribed or not (docs/mqtt.md#telemetry-and-attributes). A request is acknowledged after its answer
 * was sent.
 */

import type { Admission } from '../../activity/admission.ts';
import type { Attributes } from '../../attributes/attributes.ts';
import { foundJson, readWanted, wantedOf } from '../../attributes/request.ts';
import { readJson } from '../../value/json.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { type Operation, run } from '../session/operation.ts';
import { sendAnswer } from './answer.ts';
import { answerPatterns, forms, idOf } from './families.ts';
import type { TopicEntries } from './table.ts';

interface AttributeRequestDeps {
  admission: Admission;
  attributes: Attributes;
  readBody: ReadBody;
}

const answerFamily = { v1: 'v1/devices/me/attributes/response/', v2: 'v2/a/res/' };

export function attributeRequestTopics({ admission, attributes, readBody }: AttributeRequestDeps): TopicEntries {
  const operationOf =
    (answer: string): Operation =>
    (publish, argument) => {
      const { session, payload } = publish;
      const topic = `${answer}${idOf(argument)}`;
      admission.count(session.device);
      const wanted = wantedOf(readBody(payload, readJson));
      admission.touch(session.device);
      run(publish, async () => {
        const found = await readWanted(attributes, session.device, wanted);
        sendAnswer(session, topic, foundJson(found));
      });
    };
  return {
    prefixes: forms({ v1: 'v1/devices/me/attributes/request/', v2: 'v2/a/req/' }, answerFamily, operationOf),
    answers: answerPatterns(answerFamily),
  };
}
