/** Sets a first or new password with the token of a link, without a sign-in (docs/rest.md#passwords). */
import type { Auth } from '../auth/auth.ts';
import { passwordPolicy } from '../auth/password-policy.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { checkContentType, flag, parseJson } from '../rest/body.ts';
import { empty, json, publicRoute, type Route } from '../rest/route.ts';
import { closed, errorShape, nullable, textAnswer, tokenPairShape } from '../rest/shapes.ts';
import type { Answer } from '../uws/exchange.ts';
import type { HttpRequest } from '../uws/request.ts';
import { type PasswordPage, passwordForm, passwordSaved, tokenNames } from './password-page.ts';
import { mailQuery } from './queries.ts';

const policyShape = closed(
  {
    minimumLength: Type.Integer(),
    maximumLength: Type.Integer(),
    minimumUppercaseLetters: nullable(Type.Integer()),
    minimumLowercaseLetters: nullable(Type.Integer()),
    minimumDigits: nullable(Type.Integer()),
    minimumSpecialCharacters: nullable(Type.Integer()),
    allowWhitespaces: Type.Boolean(),
    forceUserToResetPasswordIfNotValid: Type.Boolean(),
    passwordExpirationPeriodDays: nullable(Type.Integer()),
    passwordReuseFrequencyDays: nullable(Type.Integer()),
  },
  'UserPasswordPolicy',
);

const bodies = {
  activate: Type.Object({ activateToken: Type.String(), password: Type.String() }),
  resetPassword: Type.Object({ resetToken: Type.String(), password: Type.String(), revokeApiKeys: flag }),
};
const formBody = <Token extends string>(token: Token) =>
  Type.Object({
    ...({ [token]: Type.String() } as Record<Token, Type.Schema<string>>),
    password: Type.String(),
    repeated: Type.String({ description: 'The password again' }),
  });
const resetForm = Type.Object({
  ...formBody(tokenNames.resetPassword).properties,
  revokeApiKeys: Type.Optional(Type.Boolean()),
});
const htmlAnswer = textAnswer('text/html');
/** The answer to the form of the page: saved, or the page again with the error. */
const pageOfForm = { 200: htmlAnswer, 400: htmlAnswer };
const formType = /^application\/x-www-form-urlencoded\b/i;

export function passwordRoutes(auth: Auth): Route[] {
  const bodyBytesMax = limits.signInBodyBytesMax;

  return [
    publicRoute({
      method: 'GET',
      pattern: '/api/noauth/userPasswordPolicy',
      summary: 'What a new password must be',
      answer: policyShape,
      handle: async () => json(passwordPolicy),
    }),
    publicRoute({
      method: 'GET',
      pattern: '/api/noauth/activate',
      summary: 'The page of an activation link',
      query: Type.Object({ activateToken: Type.String({ minLength: 1 }) }),
      answer: htmlAnswer,
      handle: async ({ query }) => passwordForm('activate', query.activateToken),
    }),
    publicRoute({
      method: 'POST',
      pattern: '/api/noauth/activate',
      summary: 'Choose the first password, and sign in',
      query: mailQuery,
      ownBody: { shape: bodies.activate, form: formBody(tokenNames.activate) },
      answer: tokenPairShape,
      otherAnswers: pageOfForm,
      bodyBytesMax,
      handle: ({ request }) =>
        choosePassword('activate', request, (token, password) =>
          auth.passwords.activate(token, password, request.remoteAddress),
        ),
    }),
    publicRoute({
      method: 'POST',
      pattern: '/api/noauth/resetPasswordByEmail',
      summary: 'Ask for a link to choose a new password',
      description:
        'Always 200, so that the answer does not reveal whether the account exists. There is no mail server here: an administrator hands out the link (POST /api/user/{userId}/resetPasswordLink).',
      body: Type.Object({ email: Type.String() }),
      bodyBytesMax,
      handle: async () => empty,
    }),
    publicRoute({
      method: 'GET',
      pattern: '/api/noauth/resetPassword',
      summary: 'The page of a link to choose a new password',
      query: Type.Object({ resetToken: Type.String({ minLength: 1 }) }),
      answer: htmlAnswer,
      handle: async ({ query }) => passwordForm('resetPassword', query.resetToken),
    }),
    publicRoute({
      method: 'POST',
      pattern: '/api/noauth/resetPassword',
      summary: 'Choose a new password, and sign in; other sessions end, and with `revokeApiKeys` the API keys',
      ownBody: { shape: bodies.resetPassword, form: resetForm },
      answer: tokenPairShape,
      otherAnswers: { ...pageOfForm, 401: errorShape },
      bodyBytesMax,
      handle: ({ request }) =>
        choosePassword('resetPassword', request, (token, password, revokesKeys) =>
          auth.passwords.reset(token, password, request.remoteAddress, revokesKeys),
        ),
    }),
  ];
}

/** Saves a password with the token of a link. Returns the tokens of a session. */
type SavePassword = (token: string, password: string, revokesKeys: boolean) => Promise<object>;

/** Takes the JSON of a client, or the form of the page, which is answered with a page. */
async function choosePassword(page: PasswordPage, request: HttpRequest, save: SavePassword): Promise<Answer> {
  const contentType = request.header('content-type');
  if (formType.test(contentType)) return await chooseByForm(page, request.body, save);
  checkContentType(contentType);
  return await chooseByJson(page, request.body, save);
}

async function chooseByJson(page: PasswordPage, bytes: Buffer, save: SavePassword): Promise<Answer> {
  const body = (parseJson(bytes) ?? {}) as Record<string, unknown>;
  const { [tokenNames[page]]: token, password, revokeApiKeys: revokes = false } = body;
  if (typeof token !== 'string' || typeof password !== 'string') {
    throw badRequest('body', `Validation error: ${tokenNames[page]} and password must be strings`);
  }
  if (typeof revokes !== 'boolean' && revokes !== null) {
    throw badRequest('body', 'Validation error: revokeApiKeys must be boolean');
  }
  return json(await save(token, password, revokes === true));
}

/** Shows the page again, with the error, when the password is refused. */
async function chooseByForm(page: PasswordPage, bytes: Buffer, save: SavePassword): Promise<Answer> {
  const form = new URLSearchParams(bytes.toString('utf8'));
  const token = form.get(tokenNames[page]) ?? '';
  const password = form.get('password') ?? '';
  try {
    if (password !== form.get('repeated')) throw badRequest('repeated', 'The two passwords are not the same.');
    await save(token, password, form.get('revokeApiKeys') === 'true');
  } catch (error) {
    if (!(error instanceof Fault) || error.status !== 400) throw error;
    return passwordForm(page, token, error.message);
  }
  return passwordSaved();
}
