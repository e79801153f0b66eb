/** What has become of a message whose sender asked for a receipt (docs/rest.md#receipts). */
import { type Principal, requireCustomerOf, requireTenant, tenantUsers } from '../auth/roles.ts';
import type { SigningKey } from '../auth/signing-key.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, notFound } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { findNamed, type NamedDevice } from '../diagnostics/state-store.ts';
import { writerOf } from '../ingest/order-number.ts';
import { ackLevels, BadReceipt, type Receipt, readReceipt, receiptKeyOf } from '../ingest/receipt.ts';
import { journalStates, type NamedState, pointStates, readReceiptStates } from '../ingest/receipt-states.ts';
import type { RefusedPoints } from '../ingest/refused-points.ts';
import type { Postgres } from '../postgres/client.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed, milliseconds, nullable } from '../rest/shapes.ts';
import { entityId, idJson } from './shapes.ts';

export interface ReceiptRoutesDeps {
  postgres: Postgres;
  shards: Shards;
  refusedPoints: RefusedPoints;
  clock: Clock;
  signingKey: SigningKey;
  config: { telemetry: { ttlDays: number } };
}

const orderShape = Type.String({ description: 'Order number: unique; of two writes of a point the larger one counts' });
const pointShape = closed(
  {
    deviceId: nullable(entityId),
    key: Type.String(),
    ts: milliseconds,
    state: Type.Enum(pointStates),
    replacedBy: nullable(closed({ order: orderShape, receivedTime: milliseconds })),
    reason: nullable(Type.String({ description: 'Why ClickHouse refused the point: of a suspect, or in quarantine' })),
  },
  'ReceiptPoint',
);
const receiptShape = closed(
  {
    deviceId: entityId,
    state: Type.Enum(pointStates),
    acknowledgement: Type.Enum(ackLevels),
    journaledTime: milliseconds,
    order: orderShape,
    writer: Type.Integer({ description: 'The number of the journal, of all hosts' }),
    journal: Type.Enum(journalStates),
    storedBefore: nullable(
      Type.Integer({
        description: 'Epoch milliseconds at which the whole message was in ClickHouse, the earliest known',
      }),
    ),
    points: Type.Integer(),
    devices: Type.Integer(),
    oldestTs: milliseconds,
    newestTs: milliseconds,
    namedPoints: Type.Array(pointShape),
  },
  'Receipt',
);

export function receiptRoutes(deps: ReceiptRoutesDeps): Route[] {
  const { postgres, signingKey, config } = deps;
  const statesOf = (tenantId: string) => {
    return { ...deps, shards: deps.shards.readsOf(tenantId), ttlDays: config.telemetry.ttlDays };
  };
  return [
    route({
      method: 'GET',
      pattern: '/api/receipt/:receipt',
      summary: 'What has become of a message of a device: journaled, stored, replaced, deleted, refused by ClickHouse',
      roles: tenantUsers,
      readsTelemetry: true,
      answer: receiptShape,
      async handle({ principal, params }) {
        const receipt = readSigned(params.receipt, receiptKeyOf(await signingKey.read()));
        const { tenantId } = requireTenant(principal);
        if (receipt.tenantId !== tenantId) throw unknownReceipt();
        const numbers = [...new Set([receipt.device, ...receipt.named.map(({ device }) => device)])];
        const devices = await findNamed(postgres, tenantId, numbers);
        checkSender(principal, devices.get(receipt.device));
        const found = await readReceiptStates(statesOf(tenantId), receipt, (device) => devices.get(device));
        const readable = found.named.filter(({ point }) => isReadable(principal, devices.get(point.device)));
        return json({
          deviceId: idJson('DEVICE', receipt.deviceId),
          state: found.state,
          acknowledgement: receipt.ack,
          journaledTime: receipt.journaledTime,
          order: receipt.order.toString(),
          writer: writerOf(receipt.order),
          journal: found.journal,
          storedBefore: found.storedBefore ?? null,
          points: receipt.points,
          devices: receipt.devices,
          oldestTs: receipt.oldestTs,
          newestTs: receipt.newestTs,
          namedPoints: readable.map((each) => pointJson(each, devices)),
        } satisfies Type.Static<typeof receiptShape>);
      },
    }),
  ];
}

function readSigned(text: string, key: Uint8Array): Receipt {
  try {
    return readReceipt(text, key);
  } catch (error) {
    if (!(error instanceof BadReceipt)) throw error;
    throw error.kind === 'malformed'
      ? badRequest('receipt', 'The receipt is incomplete or not valid: send it exactly as the device received it.')
      : badRequest(
          'receipt_signature',
          'The receipt was changed, or comes from another installation or an earlier key.',
        );
  }
}

/** A receipt of another tenant is answered as one of a device that never existed. */
function unknownReceipt() {
  return notFound('Receipt is not found');
}

function checkSender(principal: Principal, sender: NamedDevice | undefined): void {
  if (sender) requireCustomerOf(principal, sender.customerId);
  else if (principal.authority === 'CUSTOMER_USER') throw unknownReceipt();
}

/**
 * True when the caller may read the points of the device. Administrators read those of deleted devices, too, whose
 * customer is not known.
 */
function isReadable({ authority, customerId }: Principal, device: NamedDevice | undefined): boolean {
  return authority !== 'CUSTOMER_USER' || device?.customerId === customerId;
}

/** The id of a deleted device of a gateway is not known any more. */
function pointJson(
  { point, state, replacedBy, reason }: NamedState,
  devices: ReadonlyMap<number, NamedDevice>,
): Type.Static<typeof pointShape> {
  const device = devices.get(point.device);
  return {
    deviceId: device ? idJson('DEVICE', device.id) : null,
    key: point.key,
    ts: point.ts,
    state,
    replacedBy: replacedBy ? { order: replacedBy.order.toString(), receivedTime: replacedBy.receivedTime } : null,
    reason: reason ?? null,
  };
}
