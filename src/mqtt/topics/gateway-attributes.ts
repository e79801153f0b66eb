/**
 * `v1/gateway/attributes`: client attributes of a gateway's devices, saved in one batch and acknowledged after its
 * commit. A large message is decoded in a thread.
 */

import type { Admission } from '../../activity/admission.ts';
import type { Attributes } from '../../attributes/attributes.ts';
import { attributesOf } from '../../attributes/decode.ts';
import type { AttributeDecoder } from '../../attributes/decode-thread.ts';
import { unpackAttributes } from '../../attributes/packed-attributes.ts';
import { asFault, faultOrThrow } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { inTurns } from '../../base/loop-turns.ts';
import { childLost } from '../../gateway/child-faults.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import { Refusals } from '../../gateway/refusals.ts';
import { faultFromPlain } from '../../telemetry/plain-fault.ts';
import { readByName } from '../../value/by-name.ts';
import type { ReadBody } from '../../value/lenient.ts';
import type { TypedValue } from '../../value/typed.ts';
import { type Operation, type Publish, run } from '../session/operation.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayAttributesDeps {
  admission: Admission;
  attributes: Attributes;
  attributeDecoder: AttributeDecoder;
  readBody: ReadBody;
  castNumericStrings: boolean;
}

export function gatewayAttributeTopics(sessions: GatewaySessions, deps: GatewayAttributesDeps): TopicEntries {
  const saving = new GatewayAttributes(sessions, deps);
  return {
    exact: { 'v1/gateway/attributes': saving.operation },
    bytesMax: { 'v1/gateway/attributes': limits.attributeBodyBytesMax },
  };
}

class GatewayAttributes {
  readonly #sessions: GatewaySessions;
  readonly #deps: GatewayAttributesDeps;

  constructor(sessions: GatewaySessions, deps: GatewayAttributesDeps) {
    this.#sessions = sessions;
    this.#deps = deps;
  }

  readonly operation: Operation = (publish) => {
    const gateway = this.#sessions.of(publish.session);
    if (this.#deps.attributeDecoder.isLarge(publish.payload)) this.#takeLarge(gateway, publish);
    else this.#takeSmall(gateway, publish);
  };

  #takeSmall(gateway: Gateway, publish: Publish): void {
    const { readBody, castNumericStrings } = this.#deps;
    const { payload } = publish;
    const refusals = new Refusals();
    const byName = refusals.decodeParts(readBody(payload, readByName), (json) =>
      attributesOf(json, castNumericStrings),
    );
    const release = this.#sessions.gateways.hold(gateway.device, payload.length);
    gateway.run(
      byName.map(([name]) => ({ name, type: '' })),
      (refused) => {
        release();
        for (const [name, fault] of refused) refusals.add(name, fault);
        run(publish, () => {
          const saves = byName.map((entry) => this.#saveChild(gateway, entry, refusals));
          return committed(gateway, saves, refusals);
        });
      },
    );
  }

  #takeLarge(gateway: Gateway, publish: Publish): void {
    const { payload, release } = this.#sessions.gateways.keep(publish, gateway.device);
    gateway.run([], () => this.#saveLarge(gateway, publish, payload).finally(release));
  }

  /**
   * Decodes a large message in the thread, connects the children, and saves in turns of the loop. Resolves when all
   * attributes have their place in the order of writes, so that later messages of the gateway stay later.
   */
  async #saveLarge(gateway: Gateway, publish: Publish, payload: Buffer): Promise<void> {
    const refusals = new Refusals();
    const saves: Promise<void>[] = [];
    try {
      const packed = await this.#deps.attributeDecoder.decodeByName(payload, gateway.device);
      for (const [name, fault] of packed.refused) refusals.add(name, faultFromPlain(fault));
      const wanted = packed.names.map((name) => ({ name, type: '' }));
      for (const [name, fault] of await gateway.connect(wanted)) refusals.add(name, fault);
      await inTurns(unpackAttributes(packed), (entry) => saves.push(this.#saveChild(gateway, entry, refusals)));
    } catch (error) {
      publish.refuse(asFault(error));
      return;
    }
    run(publish, () => committed(gateway, saves, refusals));
  }

  /** Returns the commit of the attributes of one child, which takes their place in the order of writes at once. */
  async #saveChild(
    gateway: Gateway,
    [name, entries]: [string, Map<string, TypedValue>],
    refusals: Refusals,
  ): Promise<void> {
    const { admission, attributes } = this.#deps;
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
}

/** Resolves when all attributes are committed. Rejects with the Fault of those that are refused. */
async function committed(gateway: Gateway, saves: Promise<void>[], refusals: Refusals): Promise<void> {
  await Promise.all(saves);
  gateway.recordRefusals(refusals);
  const fault = refusals.fault();
  if (fault) throw fault;
}
