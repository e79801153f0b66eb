/**
 * Attributes of a gateway's devices. `v1/gateway/attributes` has their client attributes, saved in one batch and
 * acknowledged after its commit. `…/attributes/request` is answered on `…/attributes/response`, subscribed or not.
 */

import type { Admission } from '../../activity/admission.ts';
import type { Attributes, ScopedRow } from '../../attributes/attributes.ts';
import { attributesOf } from '../../attributes/decode.ts';
import { Fault, faultOrThrow } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { readByName } from '../../gateway/by-name.ts';
import { childLost, type Gateway } from '../../gateway/gateway.ts';
import type { WantedChild } from '../../gateway/names.ts';
import { Refusals } from '../../gateway/refusals.ts';
import { attributeAnswer, readAttributeRequest, scopesAndKeys } from '../../gateway/requests.ts';
import type { ReadBody } from '../../value/lenient.ts';
import type { TypedValue } from '../../value/typed.ts';
import { run } from '../session/operation.ts';
import { sendAnswer } from './answer.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayAttributesDeps {
  admission: Admission;
  attributes: Attributes;
  readBody: ReadBody;
  castNumericStrings: boolean;
}

const responseTopic = 'v1/gateway/attributes/response';

export function gatewayAttributeTopics(
  sessions: GatewaySessions,
  { admission, attributes, readBody, castNumericStrings }: GatewayAttributesDeps,
): TopicEntries {
  /** Resolves when all attributes are committed, except those that are refused. */
  async function save(
    gateway: Gateway,
    byName: Map<string, Map<string, TypedValue>>,
    refusals: Refusals,
  ): Promise<void> {
    const saves: Promise<void>[] = [];
    for (const [name, entries] of byName) {
      const child = gateway.child(name);
      if (!child) {
        if (!refusals.has(name)) refusals.add(name, childLost);
        continue;
      }
      try {
        admission.childPoints(gateway.device, child.device, entries.size);
      } catch (error) {
        refusals.add(name, faultOrThrow(error));
        child.noteRefused('rate_limit');
        continue;
      }
      const saved = attributes.save(child.device.number, 'CLIENT_SCOPE', entries, child.device.tenantId);
      saves.push(saved.catch((error: unknown) => refusals.add(name, faultOrThrow(error))));
    }
    await Promise.all(saves);
    gateway.recordRefusals(refusals);
    const fault = refusals.fault();
    if (fault) throw fault;
  }

  return {
    exact: {
      'v1/gateway/attributes': (publish) => {
        const { session, payload } = publish;
        const gateway = sessions.of(session);
        const byName = new Map<string, Map<string, TypedValue>>();
        const refusals = new Refusals();
        const wanted: WantedChild[] = [];
        for (const [name, json] of readBody(payload, readByName)) {
          try {
            if (json instanceof Fault) throw json;
            byName.set(name, attributesOf(json, castNumericStrings));
            wanted.push({ name, type: '' });
          } catch (error) {
            refusals.add(name, faultOrThrow(error));
          }
        }
        const release = sessions.gateways.hold(gateway.device, payload.length);
        gateway.run(wanted, (refused) => {
          release();
          for (const [name, fault] of refused) refusals.add(name, fault);
          run(publish, () => save(gateway, byName, refusals));
        });
      },
      'v1/gateway/attributes/request': (publish) => {
        const { session, payload } = publish;
        const gateway = sessions.of(session);
        const request = readBody(payload, readAttributeRequest);
        admission.childMessage(session.device);
        gateway.run([{ name: request.device, type: '' }], (refused) => {
          run(publish, async () => {
            const fault = refused.get(request.device);
            if (fault) throw fault;
            const { number } = gateway.child(request.device)!.device;
            const { scopes, keys } = scopesAndKeys(request);
            const answer = (rows: ScopedRow[]) => sendAnswer(session, responseTopic, attributeAnswer(request, rows));
            if (keys?.length === 0) answer([]);
            else await attributes.readFor(gateway.device, number, scopes, keys, answer);
          });
        });
      },
    },
    bytesMax: { 'v1/gateway/attributes': limits.attributeBodyBytesMax },
    answers: [responseTopic],
  };
}
