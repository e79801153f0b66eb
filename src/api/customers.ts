/** Customers, the assignment of devices, and claiming by a customer user (docs/rest.md#customers). */

import type { Customer } from '../admin/customer.ts';
import {
  assignDevice,
  type CustomerInput,
  createCustomer,
  deleteCustomer,
  saveCustomer,
  unassignDevice,
} from '../admin/customers.ts';
import type { LimitsOf } from '../admin/entity-limits.ts';
import { findCustomer, findCustomerByTitle, findCustomers, listCustomers } from '../admin/store.ts';
import {
  customerUsers,
  entityNotFound,
  type Principal,
  requireCustomerOf,
  requireTenant,
  tenantAdmins,
  tenantReaders,
  tenantUsers,
} from '../auth/roles.ts';
import { badRequest, notFound } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import { type ClaimDeps, claimDevice, reclaimDevice } from '../onboarding/claim.ts';
import { anything, parseJson, reference, text, version } from '../rest/body.ts';
import { commaList, entityUuid, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds, nullable, pageJson, pageShape, textAnswer } from '../rest/shapes.ts';
import { conflictQuery, nameConflict } from './queries.ts';
import { contactBody, contactJson, contactShape, deviceJson, deviceShape, entityId, idJson } from './shapes.ts';

const customerBody = Type.Object({
  id: reference,
  title: text,
  ...contactBody,
  externalId: reference,
  additionalInfo: anything,
  version,
});

const customerShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    title: Type.String(),
    tenantId: entityId,
    ...contactShape,
    version: Type.Integer(),
    externalId: nullable(entityId),
    name: Type.String(),
    additionalInfo: anyJson,
  },
  'Customer',
);

/** The users of the former customer have read the token of the device. */
const rotateQuery = Type.Object({ rotateToken: Type.Optional(Type.Boolean()) });

const claimBody = Type.Object({ secretKey: text });
const claimShape = closed({ device: deviceShape, response: Type.Literal('SUCCESS') }, 'ClaimResult');

export function customerRoutes(deps: ClaimDeps & { limitsOf: LimitsOf }): Route[] {
  const { postgres } = deps;

  async function visibleCustomer(principal: Principal, id: string): Promise<Customer> {
    const customer = await findCustomer(postgres, requireTenant(principal).tenantId, id);
    if (!customer) throw entityNotFound('Customer', id);
    requireCustomerOf(principal, customer.id);
    return customer;
  }

  return [
    route({
      method: 'POST',
      pattern: '/api/customer',
      summary: 'Create a customer, or replace the one with the given id',
      roles: tenantAdmins,
      query: conflictQuery,
      body: customerBody,
      answer: customerShape,
      async handle({ principal, query, body }) {
        const { tenantId } = requireTenant(principal);
        const id = entityUuid(body.id);
        const input: CustomerInput = { ...body, title: body.title ?? '', externalId: entityUuid(body.externalId) };
        const saved = await (id
          ? saveCustomer(postgres, tenantId, id, input)
          : createCustomer(deps, tenantId, input, nameConflict(query)));
        return json(customerJson(saved));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId',
      summary: 'A customer',
      roles: tenantUsers,
      answer: customerShape,
      handle: async ({ principal, params }) => json(customerJson(await visibleCustomer(principal, params.customerId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/shortInfo',
      summary: 'Title of a customer, and whether its devices are public',
      roles: tenantReaders,
      answer: closed({ title: Type.String(), isPublic: Type.Boolean() }, 'CustomerShortInfo'),
      async handle({ principal, params }) {
        const { title, isPublic } = await visibleCustomer(principal, params.customerId);
        return json({ title, isPublic });
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/title',
      summary: 'Title of a customer, as text',
      roles: tenantReaders,
      answer: textAnswer('application/text'),
      async handle({ principal, params }) {
        const { title } = await visibleCustomer(principal, params.customerId);
        return { status: 200, contentType: 'application/text', body: title };
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/customer/:customerId',
      summary: 'Delete a customer with its users; its devices stay',
      roles: tenantAdmins,
      async handle({ principal, params }) {
        await deleteCustomer(deps, requireTenant(principal).tenantId, params.customerId);
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customers',
      summary: 'Customers',
      roles: tenantAdmins,
      query: pageQuery,
      answer: pageShape(customerShape),
      handle: async ({ principal, query }) =>
        json(pageJson(await listCustomers(postgres, requireTenant(principal).tenantId, pageLink(query)), customerJson)),
    }),
    route({
      method: 'GET',
      pattern: '/api/customers/list',
      summary: 'Customers by their ids; those that the caller may not see are left out',
      roles: tenantUsers,
      query: Type.Object({ customerIds: commaList(Type.String({ format: 'uuid' })) }),
      answer: Type.Array(customerShape),
      async handle({ principal, query }) {
        const { tenantId, customerId } = requireTenant(principal);
        const ids = query.customerIds.filter((id) => customerId === null || id === customerId);
        return json((await findCustomers(postgres, tenantId, ids)).map(customerJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/customers',
      summary: 'The customer of a title',
      roles: tenantAdmins,
      query: Type.Object({ customerTitle: Type.String({ minLength: 1 }) }),
      answer: customerShape,
      async handle({ principal, query }) {
        const { tenantId } = requireTenant(principal);
        const customer = await findCustomerByTitle(postgres, tenantId, query.customerTitle);
        if (!customer) throw notFound("Requested item wasn't found!");
        return json(customerJson(customer));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/customer/:customerId/device/:deviceId',
      summary: 'Assign a device to a customer',
      roles: tenantAdmins,
      answer: deviceShape,
      async handle({ principal, params }) {
        const { tenantId } = requireTenant(principal);
        return json(deviceJson(await assignDevice(deps, tenantId, params.deviceId, params.customerId)));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/customer/public/device/:deviceId',
      summary: 'Assign a device to the public customer',
      roles: tenantAdmins,
      answer: deviceShape,
      handle: async ({ principal, params }) =>
        json(deviceJson(await assignDevice(deps, requireTenant(principal).tenantId, params.deviceId, 'public'))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/customer/device/:deviceId',
      summary: 'Take a device away from its customer, with a new access token if `rotateToken` says so',
      roles: tenantAdmins,
      query: rotateQuery,
      answer: deviceShape,
      async handle({ principal, params, query }) {
        const { tenantId } = requireTenant(principal);
        return json(deviceJson(await unassignDevice(deps, tenantId, params.deviceId, query.rotateToken ?? false)));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/customer/device/:deviceName/claim',
      summary: 'Claim a device for the own customer; the body may be left out',
      roles: customerUsers,
      ownBody: { shape: claimBody, optional: true },
      answer: claimShape,
      otherAnswers: { 400: Type.Enum(['FAILURE', 'CLAIMED']) },
      async handle({ request, principal, params }) {
        const secretKey = claimSecret(request.body);
        const outcome = await claimDevice(deps, requireTenant(principal), params.deviceName, secretKey);
        if (outcome.response === 'SUCCESS') {
          return json({ device: deviceJson(outcome.device), response: outcome.response });
        }
        return { status: 400, contentType: 'application/json', body: JSON.stringify(outcome.response) };
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/customer/device/:deviceName/claim',
      summary: 'Give a claimed device back, so that it may be claimed again; `rotateToken` is for administrators',
      roles: tenantUsers,
      query: rotateQuery,
      answer: deviceShape,
      async handle({ principal, params, query }) {
        const caller = requireTenant(principal);
        return json(deviceJson(await reclaimDevice(deps, caller, params.deviceName, query.rotateToken ?? false)));
      },
    }),
  ];
}

/** An absent body counts as an empty secret. */
function claimSecret(body: Buffer): string {
  const claim = body.length === 0 ? {} : (parseJson(body) as Type.Static<typeof claimBody> | null);
  const secretKey = claim?.secretKey ?? '';
  if (typeof claim !== 'object' || Array.isArray(claim) || typeof secretKey !== 'string') {
    throw badRequest('body', 'Validation error: secretKey must be string');
  }
  return secretKey;
}

function customerJson(customer: Customer): Type.Static<typeof customerShape> {
  return {
    id: idJson('CUSTOMER', customer.id),
    createdTime: customer.createdTime,
    title: customer.title,
    tenantId: idJson('TENANT', customer.tenantId),
    ...contactJson(customer),
    version: customer.version,
    externalId: customer.externalId ? idJson('CUSTOMER', customer.externalId) : null,
    name: customer.title,
    additionalInfo: customer.additionalInfo,
  };
}
