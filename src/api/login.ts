/** Signing in and out, and the user who is signed in (rest.md 1.1). */
import Type from 'typebox';
import { type Auth, authenticationFailed } from '../auth/auth.ts';
import { authorities } from '../auth/roles.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { HttpMethod } from '../uws/server.ts';
import { empty, json, type PublicCall, parseJson, publicRoute, type Route, route } from './route.ts';
import { tokenPairShape, userJson, userShape } from './shapes.ts';

const loginBody = Type.Object({ username: Type.String(), password: Type.String() }, { additionalProperties: false });
const refreshBody = Type.Object({ refreshToken: Type.String() });
const passwordBody = Type.Object({ currentPassword: Type.String(), newPassword: Type.String() });

export function loginRoutes(auth: Auth): Route[] {
  const bodyBytesMax = limits.signInBodyBytesMax;
  const wrongMethods: HttpMethod[] = ['GET', 'PUT', 'DELETE'];
  return [
    publicRoute({
      method: 'POST',
      pattern: '/api/auth/login',
      summary: 'Sign in with user name and password',
      body: loginBody,
      answer: tokenPairShape,
      bodyBytesMax,
      async handle(call) {
        const { username, password, ...unknown } = members(call);
        const isText = typeof username === 'string' && typeof password === 'string';
        if (!isText || username.trim() === '' || password === '' || Object.keys(unknown).length > 0) {
          throw authenticationFailed();
        }
        return json(await auth.signIn(username, password));
      },
    }),
    ...wrongMethods.map((method) =>
      publicRoute({
        method,
        pattern: '/api/auth/login',
        summary: 'Not a way to sign in',
        handle: () => Promise.reject(authenticationFailed('Authentication method not supported')),
      }),
    ),
    publicRoute({
      method: 'POST',
      pattern: '/api/auth/token',
      summary: 'Get new tokens for a refresh token',
      body: refreshBody,
      answer: tokenPairShape,
      bodyBytesMax,
      async handle(call) {
        const { refreshToken } = members(call);
        if (typeof refreshToken !== 'string' || refreshToken.trim() === '') throw authenticationFailed();
        return json(await auth.refresh(refreshToken));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/auth/user',
      summary: 'The user who is signed in',
      roles: authorities,
      answer: userShape,
      handle: async ({ account }) => json(userJson(account)),
    }),
    route({
      method: 'POST',
      pattern: '/api/auth/logout',
      summary: 'Sign out: end the session of the token',
      roles: authorities,
      async handle({ principal }) {
        await auth.signOut(principal);
        return empty;
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/auth/changePassword',
      summary: 'Change the own password; other sessions end',
      roles: authorities,
      body: passwordBody,
      answer: tokenPairShape,
      bodyBytesMax,
      handle: async ({ principal, body }) =>
        json(await auth.changePassword(principal, body.currentPassword, body.newPassword)),
    }),
  ];
}

/** Members of the body; whatever is wrong with it is a failed authentication and nothing more. */
function members({ request }: PublicCall): Record<string, unknown> {
  try {
    const body = parseJson(request.body);
    if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as Record<string, unknown>;
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
  }
  throw authenticationFailed();
}
