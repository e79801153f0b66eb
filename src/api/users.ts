/** Users (docs/rest.md#users). */

import { findTenant } from '../admin/store.ts';
import {
  accountToSignIn,
  activationOf,
  checkNewUser,
  createUser,
  deleteUser,
  enableUser,
  reachableUser,
  resetTokenOf,
  saveUser,
  type UserDeps,
  type UserInput,
} from '../admin/users.ts';
import type { Auth } from '../auth/auth.ts';
import {
  administrators,
  authorities,
  entityNotFound,
  requireCustomerOf,
  requireTenant,
  systemAdmins,
  tenantUsers,
  users,
} from '../auth/roles.ts';
import { listUsers } from '../auth/store.ts';
import type { User, UserAccount } from '../auth/user.ts';
import { Fault } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import { hasCustomer } from '../device/sql/store.ts';
import { anything, reference, text, version } from '../rest/body.ts';
import { commaList, entityUuid, oneOf, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { closed, errorShape, pageJson, pageShape, textAnswer, tokenPairShape } from '../rest/shapes.ts';
import type { HttpRequest } from '../uws/request.ts';
import { type PasswordPage, tokenNames } from './password-page.ts';
import { mailQuery } from './queries.ts';
import { userJson, userShape } from './shapes.ts';

export interface UserRoutesDeps extends UserDeps {
  auth: Auth;
}

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
  currentPassword: Type.Optional(
    Type.Union([
      Type.String({ description: 'Password of the caller, who changes its own email or that of an equal' }),
      Type.Null(),
    ]),
  ),
});

const enabledQuery = Type.Object({ userCredentialsEnabled: Type.Optional(Type.Boolean()) });

export function userRoutes(deps: UserRoutesDeps): Route[] {
  const { postgres, auth } = deps;
  return [
    route({
      method: 'POST',
      pattern: '/api/user',
      summary: 'Create a user, who then has to be activated, or replace the one with the given id',
      roles: users,
      query: mailQuery,
      body: userBody,
      answer: userShape,
      // There is no mail server.
      otherAnswers: { 500: errorShape },
      async handle({ request, principal, query, body }) {
        const id = entityUuid(body.id);
        const input = userInput(body);
        if (id !== null) {
          const { currentPassword: password } = body;
          if (typeof password === 'string') await auth.signIn.proveCaller(principal, password, request.remoteAddress);
          return json(userJson(await saveUser(deps, principal, id, input, typeof password === 'string')));
        }
        if (query.sendActivationMail ?? true) {
          await checkNewUser(postgres, principal, input);
          // No mail server can be configured: a user would wait for a mail without end.
          throw new Fault('mail', "Couldn't send user activation email");
        }
        return json(userJson(await createUser(deps, principal, input)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId',
      summary: 'A user',
      roles: users,
      answer: userShape,
      handle: async ({ principal, params }) =>
        json(userDetailsJson(await reachableUser(postgres, principal, params.userId))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/user/:userId',
      summary: 'Delete a user, whose tokens end with it',
      roles: administrators,
      async handle({ principal, params }) {
        await deleteUser(postgres, principal, params.userId);
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId/activationLink',
      summary: 'Where a new user chooses a password, as text',
      roles: administrators,
      answer: textAnswer('text/plain'),
      async handle({ request, principal, params }) {
        const { token } = await activationOf(deps, principal, params.userId);
        return { status: 200, contentType: 'text/plain', body: passwordLink(auth, request, 'activate', token) };
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId/activationLinkInfo',
      summary: 'Where a new user chooses a password, and for how long',
      roles: administrators,
      answer: closed({ value: Type.String(), ttlMs: Type.Integer() }, 'ActivationLinkInfo'),
      async handle({ request, principal, params }) {
        const { token, expiresTime } = await activationOf(deps, principal, params.userId);
        const value = passwordLink(auth, request, 'activate', token);
        return json({ value, ttlMs: expiresTime - deps.clock.now() });
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/user/:userId/resetPasswordLink',
      summary: 'Link with which a user who forgot the password chooses a new one, as text; earlier links are void',
      roles: administrators,
      answer: textAnswer('text/plain'),
      async handle({ request, principal, params }) {
        const token = await resetTokenOf(deps, principal, params.userId);
        return { status: 200, contentType: 'text/plain', body: passwordLink(auth, request, 'resetPassword', token) };
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/user/:userId/token',
      summary: 'Sign in as a user below',
      roles: administrators,
      answer: tokenPairShape,
      handle: async ({ principal, params }) =>
        json(await auth.signIn.onBehalf(await accountToSignIn(postgres, principal, params.userId))),
    }),
    route({
      method: 'POST',
      pattern: '/api/user/:userId/userCredentialsEnabled',
      summary: 'Enable or disable a user; disabling ends all of its sessions',
      roles: administrators,
      query: enabledQuery,
      async handle({ principal, params, query }) {
        await enableUser(deps, principal, params.userId, query.userCredentialsEnabled ?? true);
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/users',
      summary: 'Users of the tenant, or of the own customer',
      roles: tenantUsers,
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
      pattern: '/api/users/list',
      summary: 'Users by their ids; those that the caller may not see are left out',
      roles: tenantUsers,
      query: Type.Object({ userIds: commaList(Type.String({ format: 'uuid' })) }),
      answer: Type.Array(userShape),
      async handle({ principal, query }) {
        const { tenantId, customerId } = requireTenant(principal);
        const ids = [...new Set(query.userIds)];
        const filter = { tenantId, customerId: customerId ?? undefined, ids };
        const all = pageLink({ pageSize: Math.max(1, ids.length), page: 0 });
        return json((await listUsers(postgres, filter, all)).data.map(userJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/customer/:customerId/users',
      summary: 'Users of a customer',
      roles: tenantUsers,
      query: pageQuery,
      answer: pageShape(userShape),
      async handle({ principal, params, query }) {
        const { tenantId } = requireTenant(principal);
        const { customerId } = params;
        if (!(await hasCustomer(postgres, tenantId, customerId))) throw entityNotFound('Customer', customerId);
        requireCustomerOf(principal, customerId);
        return json(pageJson(await listUsers(postgres, { tenantId, customerId }, pageLink(query)), userJson));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/:tenantId/users',
      summary: 'Administrators of a tenant',
      roles: systemAdmins,
      query: pageQuery,
      answer: pageShape(userShape),
      async handle({ params, query }) {
        const { tenantId } = params;
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

/** Returns a link under the address at which the caller reached this server. */
function passwordLink(auth: Auth, request: HttpRequest, page: PasswordPage, token: string): string {
  const host = request.header('host') || 'localhost';
  const scheme = auth.callers.isSecure(request) ? 'https' : 'http';
  return `${scheme}://${host}/api/noauth/${page}?${tokenNames[page]}=${token}`;
}
