/** Users, and the way of a new one to a password (rest.md 1.1, 3.9). */
import Type from 'typebox';
import { type Auth, passwordPolicy } from '../auth/auth.ts';
import { type Authority, authorities, entityNotFound, requireCustomerOf, requireTenant } from '../auth/roles.ts';
import { listUsers } from '../auth/store.ts';
import type { User, UserAccount } from '../auth/user.ts';
import { badRequest, ErrorCode, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { hasCustomer } from '../device/store.ts';
import type { FleetParts } from '../fleet/parts.ts';
import { findTenant } from '../fleet/store.ts';
import {
  accountToSignIn,
  activationOf,
  createUser,
  deleteUser,
  enableUser,
  reachableUser,
  saveUser,
  type UserInput,
} from '../fleet/users.ts';
import type { HttpRequest } from '../uws/server.ts';
import { anything, reference, text, version } from './body.ts';
import { entityUuid, oneOf, optionalBoolean, pageLink, pageQuery, uuid } from './parameters.ts';
import { empty, json, parseJson, publicRoute, type Route, route } from './route.ts';
import { pageJson, pageShape, tokenPairShape, userJson, userShape } from './shapes.ts';

export interface UserRoutesParts extends FleetParts {
  auth: Auth;
  config: { ssl: { enabled: boolean; port: number } };
}

const administrators: Authority[] = ['SYS_ADMIN', 'TENANT_ADMIN'];

const userBody = Type.Object({
  id: reference,
  email: text,
  authority: text,
  tenantId: reference,
  customerId: reference,
  firstName: text,
  lastName: text,
  phone: text,
  additionalInfo: anything,
  version,
});

const activateBody = Type.Object({ activateToken: Type.String(), password: Type.String() });
const enabledQuery = Type.Object({ userCredentialsEnabled: Type.Optional(Type.Boolean()) });
const mailQuery = Type.Object({ sendActivationMail: Type.Optional(Type.Boolean()) });

export function userRoutes(parts: UserRoutesParts): Route[] {
  const { postgres, auth, config } = parts;
  return [
    publicRoute({
      method: 'GET',
      pattern: '/api/noauth/userPasswordPolicy',
      summary: 'What a new password must be',
      handle: async () => json(passwordPolicy),
    }),
    publicRoute({
      method: 'POST',
      pattern: '/api/noauth/activate',
      summary: 'Choose the first password, and sign in',
      query: mailQuery,
      body: activateBody,
      answer: tokenPairShape,
      bodyBytesMax: limits.signInBodyBytesMax,
      async handle({ request }) {
        const body = parseJson(request.body);
        const { activateToken, password } = (body ?? {}) as Record<string, unknown>;
        if (typeof activateToken !== 'string' || typeof password !== 'string') {
          throw badRequest('body', 'Validation error: activateToken and password must be strings');
        }
        return json(await auth.activate(activateToken, password));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/user',
      summary: 'Create a user, who then has to be activated, or replace the one with the given id',
      roles: authorities,
      query: mailQuery,
      body: userBody,
      answer: userShape,
      async handle({ principal, query, body }) {
        const id = entityUuid(body.id);
        const input = userInput(body);
        if (id !== null) return json(userJson(await saveUser(parts, principal, id, input)));
        if (optionalBoolean(query, 'sendActivationMail', true)) {
          // There is no mail server to be configured: a user who waits for a mail would wait for ever.
          throw new Fault(500, ErrorCode.general, 'mail', "Couldn't send user activation email");
        }
        return json(userJson(await createUser(parts, principal, input)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId',
      summary: 'A user',
      roles: authorities,
      answer: userShape,
      handle: async ({ principal, params }) =>
        json(userDetailsJson(await reachableUser(postgres, principal, uuid(params[0]!)))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/user/:userId',
      summary: 'Delete a user, whose tokens end with it',
      roles: administrators,
      async handle({ principal, params }) {
        await deleteUser(parts, principal, uuid(params[0]!));
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId/activationLink',
      summary: 'Where a new user chooses a password, as text',
      roles: administrators,
      async handle({ request, principal, params }) {
        const { token } = await activationOf(parts, principal, uuid(params[0]!));
        return { status: 200, contentType: 'text/plain', body: activationLink(request, token, config) };
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId/activationLinkInfo',
      summary: 'Where a new user chooses a password, and for how long',
      roles: administrators,
      answer: Type.Object({ value: Type.String(), ttlMs: Type.Integer() }),
      async handle({ request, principal, params }) {
        const { token, expiresTime } = await activationOf(parts, principal, uuid(params[0]!));
        return json({ value: activationLink(request, token, config), ttlMs: expiresTime - parts.clock.now() });
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId/token',
      summary: 'Sign in as a user below',
      roles: administrators,
      answer: tokenPairShape,
      handle: async ({ principal, params }) =>
        json(await auth.tokensOf(await accountToSignIn(postgres, principal, uuid(params[0]!)))),
    }),
    route({
      method: 'POST',
      pattern: '/api/user/:userId/userCredentialsEnabled',
      summary: 'Let a user sign in, or end all its sessions and let it not',
      roles: administrators,
      query: enabledQuery,
      async handle({ principal, params, query }) {
        const enabled = optionalBoolean(query, 'userCredentialsEnabled', true);
        await enableUser(parts, principal, uuid(params[0]!), enabled);
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/users',
      summary: 'Users of the tenant, or of the own customer',
      roles: ['TENANT_ADMIN', 'CUSTOMER_USER'],
      query: pageQuery,
      answer: pageShape(userShape),
      async handle({ principal, query }) {
        const { tenantId, customerId } = requireTenant(principal);
        const filter = { tenantId, customerId: customerId ?? undefined };
        return json(pageJson(await listUsers(postgres, filter, pageLink(query)), userJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/users',
      summary: 'Users of a customer',
      roles: ['TENANT_ADMIN', 'CUSTOMER_USER'],
      query: pageQuery,
      answer: pageShape(userShape),
      async handle({ principal, params, query }) {
        const { tenantId } = requireTenant(principal);
        const customerId = uuid(params[0]!);
        if (!(await hasCustomer(postgres, tenantId, customerId))) throw entityNotFound('Customer', customerId);
        requireCustomerOf(principal, customerId);
        return json(pageJson(await listUsers(postgres, { tenantId, customerId }, pageLink(query)), userJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/:tenantId/users',
      summary: 'Administrators of a tenant',
      roles: ['SYS_ADMIN'],
      query: pageQuery,
      answer: pageShape(userShape),
      async handle({ params, query }) {
        const tenantId = uuid(params[0]!);
        if (!(await findTenant(postgres, tenantId))) throw entityNotFound('Tenant', tenantId);
        const filter = { tenantId, authority: 'TENANT_ADMIN' as const };
        return json(pageJson(await listUsers(postgres, filter, pageLink(query)), userJson));
      },
    }),
  ];
}

function userInput(body: Type.Static<typeof userBody>): UserInput {
  return {
    email: body.email ?? '',
    authority: body.authority ? oneOf('authority', body.authority, authorities, 'CUSTOMER_USER') : null,
    tenantId: entityUuid(body.tenantId),
    customerId: entityUuid(body.customerId),
    firstName: body.firstName,
    lastName: body.lastName,
    phone: body.phone,
    additionalInfo: body.additionalInfo,
    version: body.version,
  };
}

function userDetailsJson(account: UserAccount): ReturnType<typeof userJson> {
  const info = typeof account.additionalInfo === 'object' ? account.additionalInfo : {};
  const { enabled, passwordHash, lastLoginTime } = account;
  const state = { userCredentialsEnabled: enabled && passwordHash !== null, userActivated: passwordHash !== null };
  const user: User = { ...account, additionalInfo: { ...info, ...state, lastLoginTs: lastLoginTime } };
  return userJson(user);
}

/** The address under which the caller reached this server. */
function activationLink(request: HttpRequest, token: string, { ssl }: UserRoutesParts['config']): string {
  const host = request.header('host') || 'localhost';
  const isTls = request.header('x-forwarded-proto') === 'https' || (ssl.enabled && host.endsWith(`:${ssl.port}`));
  return `${isTls ? 'https' : 'http'}://${host}/api/noauth/activate?activateToken=${token}`;
}
