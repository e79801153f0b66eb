/** Makes thousands of devices in one call. ThingsBoard has no such endpoint. */

import { createDevices, type NewDeviceInput } from '../admin/bulk-create.ts';
import type { NewDeviceDeps } from '../admin/devices.ts';
import { requireTenant, tenantAdmins } from '../auth/roles.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { anything, reference, text } from '../rest/body.ts';
import { entityUuid } from '../rest/parameters.ts';
import { json, type Route, route } from '../rest/route.ts';
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
      body: bulkBody,
      bodyBytesMax: limits.bulkBodyBytesMax,
      answer: bulkShape,
      async handle({ principal, body }) {
        const { tenantId } = requireTenant(principal);
        const outcomes = await createDevices(deps, tenantId, body.devices.map(rowInput));
        const results = outcomes.map((outcome, i): Type.Static<typeof resultShape> => {
          const { name } = body.devices[i]!;
          if (outcome instanceof Fault) return { name, id: null, accessToken: null, error: outcome.message };
          return { name, id: idJson('DEVICE', outcome.id), accessToken: outcome.accessToken, error: null };
        });
        const failed = results.filter(({ id }) => id === null).length;
        return json({ created: results.length - failed, failed, results });
      },
    }),
  ];
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
