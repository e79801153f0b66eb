/**
 * Attributes of a gateway's devices. `v1/gateway/attributes` has their client attributes, saved in one batch and
 * acknowledged after its commit. `…/attributes/request` is answered on `…/attributes/response`, subscribed or not.
 */

import type { Admission } from '../../activity/admission.ts';
import type { Attributes, ScopedRow } from '../../attributes/attributes.ts';
import { attributesOf } from '../../attributes/decode.ts';
import type { AttributeDecoder } from '../../attributes/decode-thread.ts';
import { unpackAttributes } from '../../attributes/packed-attributes.ts';
import { scopesAndKeys } from '../../attributes/request.ts';
import { asFault, Fault, faultOrThrow } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { inTurns } from '../../base/loop-turns.ts';
import { childLost, type Gateway } from '../../gateway/gateway.ts';
import type { WantedChild } from '../../gateway/names.ts';
import { Refusals } from '../../gateway/refusals.ts';
import { attributeAnswer, readAttributeRequest } from '../../gateway/requests.ts';
import { faultFromPlain } from '../../telemetry/plain-fault.ts';
import { readByName } from '../../value/by-name.ts';
import type { ReadBody } from '../../value/lenient.ts';
import type { TypedValue } from '../../value/typed.ts';
import { type Publish, run } from '../session/operation.ts';
import { sendAnswer } from './answer.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayAttributesDeps {
  admission: Admission;
  attributes: Attributes;
  attributeDecoder: AttributeDecoder;
  readBody: ReadBody;
  castNumericStrings: boolean;
}

const responseTopic = 'v1/gateway/attributes/response';

export function gatewayAttributeTopics(
  sessions: GatewaySessions,
  { admission, attributes, attributeDecoder, readBody, castNumericStrings }: GatewayAttributesDeps,
): TopicEntries {
  /** Returns the commit of the attributes of one child, which takes their place in the order of writes at once. */
  async function saveChild(
    gateway: Gateway,
    [name, entries]: [string, Map<string, TypedValue>],
    refusals: Refusals,
  ): Promise<void> {
    const child = gateway.child(name);
    if (!child) {
      if (!refusals.has(name)) refusals.add(name, childLost);
      return;
    }
    try {
      admission.childPoints(gateway.device, child.device, entries.size);
    } catch (error) {
      refusals.add(name, faultOrThrow(error));
      child.noteRefused('rate_limit');
      return;
    }
    try {
      await attributes.save(child.device.number, 'CLIENT_SCOPE', entries, child.device.tenantId);
    } catch (error) {
      refusals.add(name, faultOrThrow(error));
    }
  }

  /** Resolves when all attributes are committed. Rejects with the Fault of those that are refused. */
  async function committed(gateway: Gateway, saves: Promise<void>[], refusals: Refusals): Promise<void> {
    await Promise.all(saves);
    gateway.recordRefusals(refusals);
    const fault = refusals.fault();
    if (fault) throw fault;
  }

  /**
   * Takes a large message: decodes it in the thread, connects the children, and saves in turns of the loop. Resolves
   * when all attributes have their place in the order of writes, so that later messages of the gateway stay later.
   */
  async function takeLarge(gateway: Gateway, publish: Publish, payload: Buffer): Promise<void> {
    const refusals = new Refusals();
    const saves: Promise<void>[] = [];
    try {
      const packed = await attributeDecoder.decodeByName(payload, gateway.device);
      for (const [name, fault] of packed.refused) refusals.add(name, faultFromPlain(fault));
      const wanted = packed.names.map((name) => ({ name, type: '' }));
      for (const [name, fault] of await gateway.connect(wanted)) refusals.add(name, fault);
      await inTurns(unpackAttributes(packed), (entry) => saves.push(saveChild(gateway, entry, refusals)));
    } catch (error) {
      publish.refuse(asFault(error));
      return;
    }
    run(publish, () => committed(gateway, saves, refusals));
  }

  return {
    exact: {
      'v1/gateway/attributes': (publish) => {
        const { session, payload } = publish;
        const gateway = sessions.of(session);
        if (attributeDecoder.isLarge(payload)) {
          const kept = sessions.gateways.keep(publish, gateway.device);
          gateway.run([], () => takeLarge(gateway, publish, kept.payload).finally(kept.release));
          return;
        }
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
          run(publish, () => {
            const saves = [...byName].map((entry) => saveChild(gateway, entry, refusals));
            return committed(gateway, saves, refusals);
          });
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
            const { scopes, keys } = scopesAndKeys(request.wanted);
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
