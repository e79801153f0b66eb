/**
 * Why a device sends nothing: its last refusals and connections, and the devices with refusals
 * (docs/rest.md#diagnostics).
 */

import type { RateLimits } from '../auth/rate-limits.ts';
import {
  entityNotFound,
  type Principal,
  requireCustomerOf,
  requireTenant,
  systemAdmins,
  tenantAdmins,
  tenantUsers,
} from '../auth/roles.ts';
import * as Type from '../base/schema.ts';
import { findDeviceRow } from '../device/sql/store.ts';
import { type Diagnostics, orders, type Workers } from '../diagnostics/diagnostics.ts';
import { oddTimeKinds } from '../diagnostics/odd-time.ts';
import { doors, events, type Outcome } from '../diagnostics/outcome.ts';
import { findNamed, type NamedDevice, readDeviceState } from '../diagnostics/state-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { pageQuery } from '../rest/parameters.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed, milliseconds, nullable } from '../rest/shapes.ts';
import { entityId, idJson } from './shapes.ts';

export interface DiagnosticsRoutesDeps {
  postgres: Postgres;
  diagnostics: Diagnostics;
  /** Undefined = no limits. */
  rateLimits: RateLimits;
}

const outcomeShape = closed(
  {
    event: Type.Enum(events),
    door: Type.Enum(doors),
    reason: Type.String({ description: 'The stable word of docs/errors.md; empty for `connected`' }),
    message: Type.String({ description: 'The sentence that the sender got' }),
    address: nullable(Type.String({ description: 'Of the sender; for administrators of the tenant only' })),
    excerpt: Type.String({ description: 'The first bytes of the message, escaped and without secrets' }),
    since: milliseconds,
    ts: milliseconds,
    count: Type.Integer({ description: 'Equal ones from `since` to `ts` that were looked at' }),
  },
  'Outcome',
);

export const workersShape = closed({ asked: Type.Integer(), answered: Type.Integer() }, 'Workers');
const nameShape = closed({ id: entityId, name: Type.String() }, 'NamedEntity');
const assignedShape = nullable(closed({ title: Type.String(), version: Type.String() }, 'AssignedPackage'));

const diagnosticsShape = closed(
  {
    deviceId: entityId,
    name: Type.String(),
    workers: workersShape,
    since: Type.Integer({ description: 'Epoch milliseconds: all workers have kept records since then' }),
    active: Type.Boolean(),
    lastActivityTime: nullable(milliseconds),
    lastConnectTime: nullable(milliseconds),
    lastDisconnectTime: nullable(milliseconds),
    session: nullable(
      closed({ connectedTime: milliseconds, address: nullable(Type.String()), gateway: nullable(nameShape) }),
    ),
    gateway: nullable(nameShape),
    refusalCount: Type.Integer(),
    refusals: Type.Array(outcomeShape),
    connections: Type.Array(outcomeShape),
    times: Type.Array(
      closed({
        kind: Type.Enum(oddTimeKinds),
        count: Type.Integer({ description: 'Records, or refused messages' }),
        example: Type.Number({ description: 'The last one, as it was sent' }),
        receivedTime: milliseconds,
        aheadSeconds: nullable(Type.Integer({ description: 'Of the kind `ahead`: how far the device is ahead' })),
      }),
    ),
    rateLimits: Type.Array(
      closed({
        limit: Type.String({ description: 'The setting' }),
        capacity: Type.Integer(),
        seconds: Type.Integer(),
        left: Type.Number({ description: 'Negative: a debt that is paid before the next message is accepted' }),
      }),
    ),
    waiting: closed({
      commands: Type.Integer(),
      attributes: nullable(Type.Integer()),
      firmware: assignedShape,
      software: assignedShape,
    }),
  },
  'Diagnostics',
);

const refusedDeviceShape = closed(
  { deviceId: entityId, name: Type.String(), count: Type.Integer(), last: outcomeShape },
  'RefusedDevice',
);
const refusedAddressShape = closed(
  {
    network: Type.String({ description: 'An IPv4 address, or the /64 of an IPv6 address' }),
    count: Type.Integer(),
    since: milliseconds,
    ts: milliseconds,
    door: Type.Enum(doors),
    reason: Type.String(),
  },
  'RefusedAddress',
);

const listQuery = Type.Object({
  pageSize: pageQuery.properties.pageSize,
  page: pageQuery.properties.page,
  order: Type.Optional(Type.Enum(orders)),
});

function listShape(item: Type.Schema) {
  return closed(
    {
      data: Type.Array(item),
      totalPages: Type.Integer(),
      totalElements: Type.Integer(),
      hasNext: Type.Boolean(),
      workers: workersShape,
    },
    `ListOf${item.title}`,
  );
}

export function diagnosticsRoutes({ postgres, diagnostics, rateLimits }: DiagnosticsRoutesDeps): Route[] {
  return [
    route({
      method: 'GET',
      pattern: '/api/device/:deviceId/diagnostics',
      summary: 'Why a device is not there: its last refusals and connections, its limits, and what waits for it',
      roles: tenantUsers,
      answer: diagnosticsShape,
      async handle({ principal, params: { deviceId } }) {
        const { tenantId } = requireTenant(principal);
        const device = await findDeviceRow(postgres, tenantId, deviceId);
        if (!device) throw entityNotFound('Device', deviceId);
        requireCustomerOf(principal, device.customerId);
        const { number, madeBy } = device;
        const [found, state] = await Promise.all([diagnostics.ofDevice(number), readDeviceState(postgres, number)]);
        if (!state) throw entityNotFound('Device', deviceId);
        const { session } = found;
        const gateways = [madeBy, session?.gateway].filter((each) => typeof each === 'number');
        const named = gateways.length === 0 ? new Map() : await findNamed(postgres, tenantId, gateways);
        const gatewayOf = (gateway: number | null | undefined) => nameJson(principal, named.get(gateway ?? -1));
        const { active, lastActivityTime, lastConnectTime, lastDisconnectTime, ...waiting } = state;
        const isAdmin = principal.authority === 'TENANT_ADMIN';
        // The limits of the tenant show what other customers do.
        const levels = rateLimits.levels(device).filter(({ scope }) => isAdmin || scope !== 'tenant');
        return json({
          deviceId: idJson('DEVICE', device.id),
          name: device.name,
          workers: found.workers,
          since: found.since,
          active,
          lastActivityTime,
          lastConnectTime,
          lastDisconnectTime,
          session: session && {
            connectedTime: session.connectedAt,
            address: isAdmin && session.address !== '' ? session.address : null,
            gateway: gatewayOf(session.gateway),
          },
          gateway: gatewayOf(madeBy),
          refusalCount: found.refusalCount,
          refusals: found.refusals.map((each) => outcomeJson(principal, each)),
          connections: found.connections.map((each) => outcomeJson(principal, each)),
          times: found.oddTimes.map(({ kind, count, example, receivedAt }) => {
            const aheadSeconds = kind === 'ahead' ? Math.round((example - receivedAt) / 1000) : null;
            return { kind, count, example, receivedTime: receivedAt, aheadSeconds };
          }),
          rateLimits: levels.map(({ scope: _, ...level }) => level),
          waiting,
        } satisfies Type.Static<typeof diagnosticsShape>);
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/refusals',
      summary: 'Devices of the tenant whose messages were refused',
      description: 'Of each worker at most a thousand devices are listed, those that the order puts first.',
      roles: tenantAdmins,
      query: listQuery,
      answer: listShape(refusedDeviceShape),
      async handle({ principal, query: { page, pageSize, order = 'newest' } }) {
        const { tenantId } = requireTenant(principal);
        const { devices, workers } = await diagnostics.refusedDevices(tenantId, order);
        const list = pageOf(devices, page, pageSize, workers);
        const numbers = list.data.map(({ number }) => number);
        const named =
          numbers.length === 0 ? new Map<number, NamedDevice>() : await findNamed(postgres, tenantId, numbers);
        const data = list.data.flatMap(({ number, count, last }) => {
          const device = named.get(number);
          // The device was deleted at this moment.
          if (!device) return [];
          const { id, name } = device;
          return [{ deviceId: idJson('DEVICE', id), name, count, last: outcomeJson(principal, last) }];
        });
        return json({ ...list, data });
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/refusals/addresses',
      summary: 'Networks that sent wrong credentials of devices',
      description: 'Of each worker at most a thousand networks are listed, those that the order puts first.',
      roles: systemAdmins,
      query: listQuery,
      answer: listShape(refusedAddressShape),
      async handle({ query: { page, pageSize, order = 'newest' } }) {
        const { strangers, workers } = await diagnostics.strangers(order);
        return json(pageOf(strangers, page, pageSize, workers));
      },
    }),
  ];
}

function pageOf<T>(all: readonly T[], page: number, pageSize: number, workers: Workers) {
  const totalPages = Math.ceil(all.length / pageSize);
  const data = all.slice(page * pageSize, (page + 1) * pageSize);
  return { data, totalPages, totalElements: all.length, hasNext: page + 1 < totalPages, workers };
}

/** A user of a customer sees no address: another sender with the device's credentials may be none of the customer's. */
function outcomeJson(principal: Principal, outcome: Outcome): Type.Static<typeof outcomeShape> {
  const { event, door, reason, message, address, excerpt, since, ts, count } = outcome;
  const isAdmin = principal.authority === 'TENANT_ADMIN';
  return {
    event,
    door,
    reason,
    message,
    address: isAdmin && address !== '' ? address : null,
    excerpt,
    since,
    ts,
    count,
  };
}

/** Null: there is none, or the caller may not see it. */
function nameJson({ authority, customerId }: Principal, device: NamedDevice | undefined) {
  if (!device || (authority === 'CUSTOMER_USER' && device.customerId !== customerId)) return null;
  return { id: idJson('DEVICE', device.id), name: device.name };
}
