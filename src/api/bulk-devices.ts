/** Makes thousands of devices in one call. ThingsBoard has no such endpoint. */

import { createDevices, type NewDeviceInput, type NewDeviceOutcome } from '../admin/bulk-create.ts';
import type { NewDeviceDeps } from '../admin/devices.ts';
import { requireTenant, tenantAdmins } from '../auth/roles.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { inTurns } from '../base/loop-turns.ts';
import * as Type from '../base/schema.ts';
import { anything, readBodyRows, reference, text } from '../rest/body.ts';
import { entityUuid } from '../rest/parameters.ts';
import { jsonAnswer, type Route, route } from '../rest/route.ts';
import { closed, nullable } from '../rest/shapes.ts';
import { entityId, idJson } from './shapes.ts';

const row = Type.Object({
  name: Type.String({ minLength: 1 }),
  type: text,
  label: text,
  deviceProfileId: reference,
  customerId: reference,
  additionalInfo: anything,
  accessToken: text,
});
const bulkBody = Type.Object({ devices: Type.Array(row, { maxItems: limits.newDevicesPerRequest }) });

const resultShape = closed(
  {
    name: Type.String(),
    id: nullable(entityId),
    accessToken: nullable(Type.String()),
    error: nullable(Type.String({ description: 'Why this device was not made' })),
  },
  'BulkDeviceResult',
);
const bulkShape = closed(
  { created: Type.Integer(), failed: Type.Integer(), results: Type.Array(resultShape) },
  'BulkDeviceResults',
);

export function bulkDeviceRoutes(deps: NewDeviceDeps): Route[] {
  return [
    route({
      method: 'POST',
      pattern: '/api/devices/bulk',
      summary: 'Create many devices',
      description: `At most ${limits.newDevicesPerRequest}. The answer has a result for each of them, in their order: the id and access token, or what was wrong with that one; the others are made all the same. Without an access token a device gets a random one.`,
      roles: tenantAdmins,
      ownBody: { shape: bulkBody, jsonOnly: true },
      bodyBytesMax: limits.bulkBodyBytesMax,
      answer: bulkShape,
      async handle({ principal, request }) {
        const { tenantId } = requireTenant(principal);
        const devices = await readBodyRows(request, 'devices', row, limits.newDevicesPerRequest);
        const inputs: NewDeviceInput[] = [];
        await inTurns(devices, (device) => inputs.push(rowInput(device)));
        const outcomes = await createDevices(deps, tenantId, inputs);
        const failed = outcomes.filter((outcome) => outcome instanceof Fault).length;
        let results = '';
        await inTurns(outcomes, (outcome, i) => {
          results += `${i === 0 ? '' : ','}${JSON.stringify(resultJson(devices[i]!.name, outcome))}`;
        });
        return jsonAnswer(`{"created":${outcomes.length - failed},"failed":${failed},"results":[${results}]}`);
      },
    }),
  ];
}

function resultJson(name: string, outcome: NewDeviceOutcome): Type.Static<typeof resultShape> {
  if (outcome instanceof Fault) return { name, id: null, accessToken: null, error: outcome.message };
  return { name, id: idJson('DEVICE', outcome.id), accessToken: outcome.accessToken, error: null };
}

function rowInput(device: Type.Static<typeof row>): NewDeviceInput {
  return {
    name: device.name,
    type: device.type ?? '',
    label: device.label ?? null,
    profileId: entityUuid(device.deviceProfileId),
    customerId: entityUuid(device.customerId),
    additionalInfo: device.additionalInfo ?? null,
    accessToken: device.accessToken ?? '',
  };
}
