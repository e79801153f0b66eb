/** Finds devices by relations, lists the types in use, and shows how a device connects (docs/rest.md#devices). */
import { readFile } from 'node:fs/promises';
import { visibleCredentials } from '../admin/credentials.ts';
import { mayRead, usableEntity } from '../admin/entities.ts';
import { commonGroup } from '../admin/relation-store.ts';
import { relationGroups, searchRelations } from '../admin/relations.ts';
import type { Auth } from '../auth/auth.ts';
import { requireTenant, tenantReaders, tenantUsers } from '../auth/roles.ts';
import { notFound } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import type { Config } from '../base/settings/config.ts';
import { readMqttBasic } from '../device/model/credentials.ts';
import type { Device, DeviceCredentials } from '../device/model/device.ts';
import { findDevices, listDeviceTypes } from '../device/sql/store.ts';
import type { Queries } from '../postgres/client.ts';
import { flag, optional, text } from '../rest/body.ts';
import { oneOf, uuid } from '../rest/parameters.ts';
import { json, publicRoute, type Route, route } from '../rest/route.ts';
import { closed } from '../rest/shapes.ts';
import { attachmentHeaders } from '../uws/attachment.ts';
import type { HttpRequest } from '../uws/request.ts';
import { deviceJson, deviceShape, entityId, idJson } from './shapes.ts';

interface DeviceSearchDeps {
  postgres: Queries;
  auth: Auth;
  config: Config;
}

const searchBody = Type.Object({
  parameters: Type.Object({
    rootId: Type.String({ format: 'uuid' }),
    rootType: Type.String(),
    direction: Type.Enum(['FROM', 'TO']),
    relationTypeGroup: text,
    maxLevel: optional(Type.Integer()),
    fetchLastLevelOnly: flag,
  }),
  relationType: text,
  deviceTypes: Type.Array(Type.String(), { maxItems: limits.listedKeysMax }),
});

const typeShape = closed(
  { tenantId: entityId, entityType: Type.Literal('DEVICE'), type: Type.String() },
  'EntitySubtype',
);
const commandShape = Type.Optional(Type.String({ description: 'A line for a shell' }));
const commandsShape = Type.Optional(
  Type.Array(Type.String(), { description: 'Lines for a shell: the first one fetches the certificates of the server' }),
);
const connectivityShape = closed(
  {
    http: Type.Optional(closed({ http: commandShape, https: commandShape })),
    mqtt: Type.Optional(closed({ mqtt: commandShape, mqtts: commandsShape })),
  },
  'DeviceConnectivity',
);

/** ThingsBoard's path and file name, which its guides print. */
const certificatePath = '/api/device-connectivity/mqtts/certificate/download';
const certificateFile = 'tb-server-chain.pem';

export function deviceSearchRoutes({ postgres, auth, config }: DeviceSearchDeps): Route[] {
  return [
    route({
      method: 'POST',
      pattern: '/api/devices',
      summary: 'Devices of some types that relations lead to, from a root or to it',
      roles: tenantUsers,
      reads: true,
      body: searchBody,
      answer: Type.Array(deviceShape),
      async handle({ principal, body }) {
        const caller = requireTenant(principal);
        const { rootId, rootType, direction, relationTypeGroup, maxLevel, fetchLastLevelOnly } = body.parameters;
        const root = { id: uuid(rootId), type: rootType };
        await usableEntity(postgres, caller, root, 'read');
        const type = body.relationType || 'Contains';
        const found = await searchRelations(postgres, caller, {
          root,
          direction,
          group: oneOf('relationTypeGroup', relationTypeGroup, relationGroups, commonGroup),
          finds: (each, end) => each === type && end.type === 'DEVICE',
          levelsMax: Math.max(0, maxLevel ?? 0),
          lastLevelOnly: fetchLastLevelOnly ?? false,
        });
        const devices = await findDevices(
          postgres,
          caller.tenantId,
          found.map(({ id }) => id),
        );
        const types = new Set(body.deviceTypes);
        const isSeen = ({ type, customerId }: Device) =>
          types.has(type) && mayRead(caller, { type: 'DEVICE', customerId });
        return json(devices.filter(isSeen).map(deviceJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/device/types',
      summary: 'The types that devices have',
      roles: tenantReaders,
      answer: Type.Array(typeShape),
      async handle({ principal }) {
        const { tenantId, customerId } = requireTenant(principal);
        const types = await listDeviceTypes(postgres, tenantId, customerId);
        return json(types.map((type) => ({ tenantId: idJson('TENANT', tenantId), entityType: 'DEVICE', type })));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/device-connectivity/:deviceId',
      summary: 'Lines for a shell that send telemetry as a device',
      roles: tenantUsers,
      answer: connectivityShape,
      async handle({ request, principal, params: { deviceId } }) {
        const credentials = await visibleCredentials(postgres, principal, deviceId);
        return json(connectivity(config, request, auth.callers.isSecure(request), credentials));
      },
    }),
    publicRoute({
      method: 'GET',
      pattern: certificatePath,
      summary: 'The certificates of MQTT over TLS, as PEM',
      answer: { contentType: 'application/octet-stream', schema: Type.String({ format: 'binary' }) },
      async handle() {
        const { enabled, ssl } = config.mqtt;
        if (!enabled || !ssl.enabled) throw notFound('MQTT over TLS is off here; MQTT_SSL_ENABLED turns it on.');
        const body = certificatesIn(await readFile(ssl.cert, 'latin1'));
        const headers = attachmentHeaders(certificateFile);
        return { status: 200, contentType: 'application/octet-stream', headers, body };
      },
    }),
  ];
}

/** Leaves everything else out: the file may hold the private key, too. */
function certificatesIn(pem: string): string {
  const certificates = pem.match(/-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----/gs) ?? [];
  return certificates.map((certificate) => `${certificate}\n`).join('');
}

/** Uses the address at which the caller reached this server, and the ports of this server. */
function connectivity(config: Config, request: HttpRequest, isSecure: boolean, credentials: DeviceCredentials): object {
  const given = request.header('host');
  const address = /^[A-Za-z0-9.-]+(:\d+)?$|^\[[0-9A-Fa-f:.]+\](:\d+)?$/.test(given) ? given : 'localhost';
  const host = address.replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
  const scheme = isSecure ? 'https' : 'http';
  const commands: { http?: Record<string, string>; mqtt?: Record<string, string | string[]> } = {};
  const { type, credentialsId, value } = credentials;
  const body = quoted(config.values.lenientJson ? '{temperature:25}' : '{"temperature":25}');
  if (type === 'ACCESS_TOKEN') {
    const url = quoted(`${scheme}://${address}/api/v1/${encodeURIComponent(credentialsId)}/telemetry`);
    commands.http = {
      [scheme]: `curl -v -X POST ${url} --header Content-Type:application/json --data ${body}`,
    };
  }
  const login = loginOf(type, credentialsId, value);
  if (config.mqtt.enabled && login !== undefined) {
    const publish = (port: number, more: string) =>
      `mosquitto_pub -d -q 1 -h ${host} -p ${port} ${more}-t v1/devices/me/telemetry ${login} -m ${body}`;
    commands.mqtt = { mqtt: publish(config.mqtt.port, '') };
    if (config.mqtt.ssl.enabled) {
      commands.mqtt['mqtts'] = [
        `curl -f -S -o ${certificateFile} ${quoted(`${scheme}://${address}${certificatePath}`)}`,
        publish(config.mqtt.ssl.port, `--cafile ${certificateFile} `),
      ];
    }
  }
  return commands;
}

/** Options of mosquitto_pub; undefined for a certificate, of which the server has no key. */
function loginOf(type: string, credentialsId: string, value: string | null): string | undefined {
  if (type === 'ACCESS_TOKEN') return `-u ${quoted(credentialsId)}`;
  if (type !== 'MQTT_BASIC') return undefined;
  const { clientId, userName, password } = readMqttBasic(value);
  const options = [
    ['-i', clientId],
    ['-u', userName],
    ['-P', password],
  ] as const;
  return options.flatMap(([option, text]) => (text ? [`${option} ${quoted(text)}`] : [])).join(' ');
}

/** Quotes any string as one word for a shell. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
