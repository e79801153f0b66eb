// The session of the user who is signed in at this origin. The session is kept in four entries of localStorage, shared
// by all pages and tabs of the origin. No other file uses these entries.
import { CallError, send } from './call.js';

const names = {
  token: 'jwt_token',
  tokenExpiration: 'jwt_token_expiration',
  refreshToken: 'refresh_token',
  refreshTokenExpiration: 'refresh_token_expiration',
};

// A token is renewed this long before its end, or in the last quarter of a shorter lifetime.
const renewBeforeMs = 60_000;
const checkEveryMs = 5_000;

const tokenEnded = 'Your session has ended. Sign in again.';

/** Returns the claims of a token, without checking its signature. */
export function claimsOf(token) {
  try {
    const bytes = Uint8Array.from(atob(token.split('.')[1].replace(/-/g, '+').replace(/_/g, '/')), (c) =>
      c.charCodeAt(0),
    );
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return {};
  }
}

/** Returns the end of a token by the clock of this browser, which may differ from the server's clock. */
export function expirationOf(token) {
  const { iat, exp } = claimsOf(token);
  return exp > iat ? Date.now() + (exp - iat) * 1000 : 0;
}

function store({ token, refreshToken }) {
  localStorage.setItem(names.token, token);
  localStorage.setItem(names.tokenExpiration, String(expirationOf(token)));
  localStorage.setItem(names.refreshToken, refreshToken);
  localStorage.setItem(names.refreshTokenExpiration, String(expirationOf(refreshToken)));
}

function forget() {
  for (const name of Object.values(names)) localStorage.removeItem(name);
}

function stored(name) {
  const value = localStorage.getItem(name);
  return value === null || value === '' ? undefined : value;
}

function goodFor(expirationName) {
  return Number(stored(expirationName) ?? 0) - Date.now();
}

/** Returns the claims of the stored token; undefined when no user is signed in. */
export function signedIn() {
  const token = stored(names.token);
  const isGood = token && (goodFor(names.tokenExpiration) > 0 || goodFor(names.refreshTokenExpiration) > 0);
  return isGood ? claimsOf(token) : undefined;
}

export async function signIn(username, password) {
  store(await send('POST', '/api/auth/login', { username, password }));
}

/** Ends the session in this browser in any case; throws when the server could not be reached. */
export async function signOut() {
  const token = stored(names.token);
  forget();
  if (!token) return;
  try {
    await send('POST', '/api/auth/logout', undefined, token);
  } catch (error) {
    // The server has ended the session already.
    if (error.status !== 401) throw error;
  }
}

let renewal;

/** Returns the token for the next call, renewed when it is about to end; undefined when no user is signed in. */
export async function currentToken() {
  const token = stored(names.token);
  if (!token) return undefined;
  const { iat, exp } = claimsOf(token);
  const early = Math.min(renewBeforeMs, ((exp - iat) * 1000) / 4);
  if (goodFor(names.tokenExpiration) > early) return token;
  renewal ??= renew().finally(() => {
    renewal = undefined;
  });
  return await renewal;
}

async function renew() {
  const refreshToken = stored(names.refreshToken);
  try {
    if (!refreshToken || goodFor(names.refreshTokenExpiration) <= 0) throw new CallError(401, tokenEnded);
    store(await send('POST', '/api/auth/token', { refreshToken }));
  } catch (error) {
    if (error.status === 401) {
      // Keeps the session of another tab that has signed in meanwhile.
      if (stored(names.refreshToken) === refreshToken) forget();
    } else if (goodFor(names.tokenExpiration) <= 0) {
      throw error;
    }
  }
  return stored(names.token);
}

/** Makes a call of the signed-in user. When the server no longer knows the session, the session ends here too. */
export async function call(method, path, body) {
  const token = await currentToken();
  if (!token) throw new CallError(401, tokenEnded);
  try {
    return await send(method, path, body, token);
  } catch (error) {
    if (error.status !== 401) throw error;
    if (stored(names.token) === token) forget();
    throw new CallError(401, tokenEnded);
  }
}

/** Keeps the session alive while the page is open. Calls `look` when the signed-in user may have changed. */
export function watch(look) {
  addEventListener('storage', look);
  setInterval(() => {
    currentToken()
      .catch(() => {})
      .finally(look);
  }, checkEveryMs);
}
