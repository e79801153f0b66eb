/** Sign-in, sign-out, and the signed-in user (docs/rest.md#sign-in). */
import type { Auth } from '../auth/auth.ts';
import { everyone, users } from '../auth/roles.ts';
import { authenticationFailed } from '../auth/unauthorized.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { isObject } from '../base/schema.ts';
import { flag, parseJson } from '../rest/body.ts';
import { empty, json, publicRoute, type Route, route } from '../rest/route.ts';
import { errorShape, tokenPairShape } from '../rest/shapes.ts';
import type { HttpRequest } from '../uws/request.ts';
import type { HttpMethod } from '../uws/server.ts';
import { userJson, userShape } from './shapes.ts';

const loginBody = Type.Object(
  { username: Type.String({ minLength: 1 }), password: Type.String({ minLength: 1 }) },
  { additionalProperties: false },
);
const publicBody = Type.Object({ publicId: Type.String({ description: 'Id of a public customer' }) });
const refreshBody = Type.Object({ refreshToken: Type.String({ minLength: 1 }) });
const passwordBody = Type.Object({
  currentPassword: Type.String(),
  newPassword: Type.String(),
  revokeApiKeys: flag,
});

/** Every fault of a sign-in is a failed authentication. */
const otherAnswers = { 401: errorShape };
const jwtDeprecated = 'Signing in for tokens is deprecated: use API keys.';

export function loginRoutes(auth: Auth): Route[] {
  const bodyBytesMax = limits.signInBodyBytesMax;
  const wrongMethods: HttpMethod[] = ['GET', 'PUT', 'DELETE'];
  return [
    publicRoute({
      method: 'POST',
      pattern: '/api/auth/login',
      summary: 'Sign in with user name and password',
      description: jwtDeprecated,
      deprecated: true,
      ownBody: { shape: loginBody },
      answer: tokenPairShape,
      otherAnswers,
      bodyBytesMax,
      async handle({ request }) {
        const { username, password, ...unknown } = membersOf(request);
        const isText = typeof username === 'string' && typeof password === 'string';
        if (!isText || username.trim() === '' || password === '' || Object.keys(unknown).length > 0) {
          throw authenticationFailed();
        }
        return json(await auth.signIn.byPassword(username, password, request.remoteAddress));
      },
    }),
    ...wrongMethods.map((method) =>
      publicRoute({
        method,
        pattern: '/api/auth/login',
        summary: 'Not a way to sign in',
        hidden: true,
        handle: () => Promise.reject(authenticationFailed('Authentication method not supported')),
      }),
    ),
    publicRoute({
      method: 'POST',
      pattern: '/api/auth/login/public',
      summary: 'Sign in as a guest, who may read what belongs to a public customer',
      description: jwtDeprecated,
      deprecated: true,
      ownBody: { shape: publicBody },
      answer: tokenPairShape,
      otherAnswers,
      bodyBytesMax,
      async handle({ request }) {
        const { publicId } = membersOf(request);
        if (typeof publicId !== 'string' || publicId.trim() === '') throw authenticationFailed();
        return json(await auth.signIn.byPublicCustomer(publicId));
      },
    }),
    publicRoute({
      method: 'POST',
      pattern: '/api/auth/token',
      summary: 'Get new tokens for a refresh token',
      description: jwtDeprecated,
      deprecated: true,
      ownBody: { shape: refreshBody },
      answer: tokenPairShape,
      otherAnswers,
      bodyBytesMax,
      async handle({ request }) {
        const { refreshToken } = membersOf(request);
        if (typeof refreshToken !== 'string' || refreshToken.trim() === '') throw authenticationFailed();
        return json(await auth.sessions.renew(refreshToken));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/auth/user',
      summary: 'The user who is signed in',
      roles: everyone,
      answer: userShape,
      handle: async ({ account, principal }) => json(userJson(await auth.callers.userOf({ account, principal }))),
    }),
    route({
      method: 'POST',
      pattern: '/api/auth/logout',
      summary: 'Sign out: end the session of the token',
      roles: everyone,
      async handle({ principal }) {
        await auth.sessions.end(principal);
        return empty;
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/auth/changePassword',
      summary: 'Change the own password; other sessions end',
      description: 'With `revokeApiKeys` the API keys of the user end too, and those that were made with them.',
      roles: users,
      body: passwordBody,
      answer: tokenPairShape,
      bodyBytesMax,
      async handle({ request, principal, body }) {
        const { currentPassword: current, newPassword: next, revokeApiKeys } = body;
        const change = { current, next, revokesKeys: revokeApiKeys ?? false };
        return json(await auth.passwords.change(principal, change, request.remoteAddress));
      },
    }),
  ];
}

/** Returns the members of the body, of any content type. Every fault is a failed authentication without details. */
function membersOf(request: HttpRequest): Record<string, unknown> {
  try {
    const body = parseJson(request.body);
    if (isObject(body)) return body;
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
  }
  throw authenticationFailed();
}
