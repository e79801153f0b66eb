/**
 * The console and the page of the API document in a browser: who is signed in, keys, and the credentials with which
 * calls are sent.
 */
import { randomUUID } from 'node:crypto';
import type { Browser, BrowserContext, Locator, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { launchBrowser } from '../../harness/browser.ts';
import { newTenant, ok, type Person } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const waitMsMax = 20_000;
const testMsMax = 90_000;

let browser: Browser;
let context: BrowserContext;
let page: Page;
let admin: Person;
/** The errors that a page has reported, and its calls of the API. */
let complaints: string[];
let calls: string[];
/** Statuses that a test provokes; the browser reports each as an error. */
let expectedStatuses: number[];

beforeAll(async () => {
  browser = await launchBrowser();
  ({ admin } = await newTenant());
});

afterAll(async () => {
  await browser?.close();
});

beforeEach(async () => {
  [complaints, calls, expectedStatuses] = [[], [], []];
  context = await browser.newContext({ baseURL: sharedEngine().http });
  context.setDefaultTimeout(waitMsMax);
  await context.addInitScript(() => {
    const { addEventListener, console } = globalThis as unknown as Window;
    addEventListener('securitypolicyviolation', (event) => {
      console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`);
    });
  });
  page = await newPage();
});

afterEach(async () => {
  await context.close();
  expect(complaints).toEqual([]);
});

/** The members of a browser's window that the tests use. */
interface Window {
  addEventListener(
    type: 'securitypolicyviolation',
    listener: (event: { violatedDirective: string; blockedURI: string; sourceFile: string }) => void,
  ): void;
  console: { error(text: string): void };
  localStorage: { getItem(name: string): string | null; setItem(name: string, value: string): void };
}

async function newPage(): Promise<Page> {
  const made = await context.newPage();
  made.on('pageerror', (error) => complaints.push(String(error)));
  made.on('console', (message) => {
    const isExpected = expectedStatuses.some((status) => message.text().includes(`status of ${status} `));
    if (['error', 'warning'].includes(message.type()) && !isExpected) complaints.push(message.text());
  });
  made.on('request', (request) => {
    const { pathname } = new URL(request.url());
    if (pathname.startsWith('/api/')) calls.push(`${request.method()} ${pathname}`);
  });
  return made;
}

async function signIn(password = admin.password, at = page): Promise<void> {
  await at.goto('/');
  await at.getByLabel('User name').fill(admin.email);
  await at.getByLabel('Password').fill(password);
  await at.keyboard.press('Enter');
}

async function createKey(description: string): Promise<string> {
  await page.getByRole('button', { name: 'Create a key' }).click();
  await page.getByLabel('Description', { exact: true }).fill(description);
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('heading', { name: 'Your new key' }).waitFor();
  const value = await page.getByLabel('The key').inputValue();
  await page.getByRole('button', { name: 'Done' }).click();
  return value;
}

function stored(name: string): Promise<string | null> {
  return page.evaluate((key) => (globalThis as unknown as Window).localStorage.getItem(key), name);
}

function store(name: string, value: string): Promise<void> {
  const pair = [name, value] as const;
  return page.evaluate(([key, text]) => (globalThis as unknown as Window).localStorage.setItem(key, text), pair);
}

const tokenNames = ['jwt_token', 'jwt_token_expiration', 'refresh_token', 'refresh_token_expiration'];

const userOperation = '#operations-login-endpoint-getAuthUser';

/**
 * Calls `GET /api/auth/user` on the page of the API document, where that operation is open. Returns the user that the
 * server answers, and the credentials that were sent.
 */
async function callAsUser(): Promise<{ email: string; by: string }> {
  const operation = page.locator(userOperation);
  const execute = operation.getByRole('button', { name: 'Execute' });
  const [response] = await Promise.all([page.waitForResponse('**/api/auth/user'), execute.click()]);
  await operation.locator('.live-responses-table .response-col_status').filter({ hasText: '200' }).waitFor();
  return { email: (await response.json()).email, by: response.request().headers()['x-authorization'] ?? '' };
}

/**
 * Later loads get the operations of one tag alone: the whole document takes the browser seconds, at each load and at
 * each opened operation. Returns all tags.
 */
async function shortenDocument(tag: string): Promise<string[]> {
  const path = '/v3/api-docs/thingsboard';
  type Paths = Record<string, Record<string, { tags?: string[] }>>;
  const document = (await (await fetch(`${sharedEngine().http}${path}`)).json()) as { paths: Paths };
  const isOfTag = ([, item]: [string, Paths[string]]) => Object.values(item).some(({ tags }) => tags?.includes(tag));
  const paths = Object.fromEntries(Object.entries(document.paths).filter(isOfTag));
  await context.route(`**${path}`, (route) => route.fulfill({ json: { ...document, paths } }));
  const operations = Object.values(document.paths).flatMap((item) => Object.values(item));
  return [...new Set(operations.flatMap(({ tags = [] }) => tags))];
}

/** Fills in one of the forms of "Authorize". */
async function authorize(scheme: string, fill: (form: Locator) => Promise<void>): Promise<void> {
  await page.locator('.auth-wrapper > .authorize').click();
  const form = page.locator('.auth-container').filter({ hasText: scheme });
  await fill(form);
  await form.getByRole('button', { name: 'Close' }).click();
}

test(
  'a user signs in, creates a key, and calls the API from its document: signed in, with the key, with both',
  async () => {
    await signIn();
    const description = `orchard feed ${randomUUID()}`;
    const key = await createKey(description);
    expect(key).toMatch(/^tb_[A-Za-z0-9_-]{86}$/);
    await page.getByRole('row', { name: description }).getByText('enabled').waitFor();
    expect(await page.content()).not.toContain(key);

    // After a sign-in at the console nothing has to be authorized.
    await page.getByRole('link', { name: 'API documentation' }).click();
    await page.getByText(`Calls go out as ${admin.email}, signed in at the console.`).waitFor();
    expect(new URL(page.url()).pathname).toBe('/swagger-ui/index.html');
    await page.locator('#operations-tag-login-endpoint').waitFor({ timeout: 60_000 });
    const shown = await page.locator('[id^="operations-tag-"]').evaluateAll((tags) => tags.map(({ id }) => id));
    const tags = await shortenDocument('login-endpoint');
    expect(shown.sort()).toEqual(tags.map((tag) => `operations-tag-${tag}`).sort());
    await page.reload();
    await page.locator('#operations-tag-login-endpoint').click();
    await page.locator(userOperation).getByText('/api/auth/user').click();
    expect(await callAsUser()).toEqual({ email: admin.email, by: `Bearer ${await stored('jwt_token')}` });

    // With an API key alone, which a reload removes. The page notices a sign-out in another tab.
    const consoleTab = await newPage();
    await consoleTab.goto('/');
    await consoleTab.getByRole('button', { name: 'Sign out' }).click();
    await consoleTab.getByText('You are signed out.').waitFor();
    for (const name of tokenNames) expect(await stored(name)).toBeNull();
    await page.bringToFront();
    await page.getByText('No user is signed in').waitFor();
    const giveKey = () =>
      authorize('ApiKeyForm', async (form) => {
        await form.getByRole('textbox').fill(`ApiKey ${key}`);
        await form.getByRole('button', { name: 'Apply credentials' }).click();
        await page.getByText('Calls go out with your API key.').waitFor();
      });
    await giveKey();
    expect(await callAsUser()).toEqual({ email: admin.email, by: `ApiKey ${key}` });
    await page.reload();
    await page.getByText('No user is signed in').waitFor();
    await giveKey();

    // With an API key and a JWT: the JWT is used, whether it is from the login form or from the console.
    await authorize('HttpLoginForm', async (form) => {
      await form.getByLabel('User name').fill(admin.email);
      await form.getByLabel('Password').fill(admin.password);
      await form.getByRole('button', { name: 'Apply credentials' }).click();
      await form.getByText(`Authorized as ${admin.email}`).waitFor();
    });
    const byLogin = await callAsUser();
    expect(byLogin).toEqual({ email: admin.email, by: expect.stringMatching(/^Bearer ey/) });
    await authorize('HttpLoginForm', (form) => form.getByRole('button', { name: 'Remove authorization' }).click());
    await page.getByText('Calls go out with your API key.').waitFor();
    await signIn(admin.password, consoleTab);
    await page.bringToFront();
    await page.getByText('signed in at the console.').waitFor();
    const bySession = await callAsUser();
    expect(bySession).toEqual({ email: admin.email, by: `Bearer ${await stored('jwt_token')}` });
    expect(bySession.by).not.toBe(byLogin.by);
  },
  testMsMax,
);

test('a key is disabled, enabled, found and revoked, at once on the server', async () => {
  await signIn();
  const description = `night export ${randomUUID()}`;
  const key = await createKey(description);
  await createKey('another one');
  const row = page.getByRole('row', { name: description });
  const statusOfKey = async () => {
    const headers = { 'x-authorization': `ApiKey ${key}` };
    return (await fetch(`${sharedEngine().http}/api/auth/user`, { headers })).status;
  };
  await expect.poll(statusOfKey).toBe(200);
  await row.getByRole('button', { name: 'Disable' }).click();
  await row.getByText('disabled').waitFor();
  await expect.poll(statusOfKey).toBe(401);
  await row.getByRole('button', { name: 'Enable' }).click();
  await row.getByText('enabled').waitFor();
  await expect.poll(statusOfKey).toBe(200);
  await page.getByLabel('Search descriptions').fill(description);
  await page.getByText('another one').waitFor({ state: 'detached' });
  await row.getByRole('button', { name: 'Revoke' }).click();
  await page.getByRole('button', { name: 'Keep it' }).click();
  await row.getByRole('button', { name: 'Revoke' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await page.getByText('No description contains this text.').waitFor();
  await expect.poll(statusOfKey).toBe(401);
  const { data } = await ok('GET', `/api/apiKeys/${admin.id}?pageSize=100&page=0`, undefined, admin.token);
  expect(data.map((each: { description: string }) => each.description)).not.toContain(description);
});

test('a token that is about to end is renewed, and one that the server refuses ends the session', async () => {
  await signIn();
  await page.getByRole('button', { name: 'Create a key' }).waitFor();
  const first = await stored('refresh_token');
  for (const name of ['jwt_token', 'refresh_token']) {
    const { iat, exp } = JSON.parse(Buffer.from((await stored(name))!.split('.')[1]!, 'base64url').toString());
    const expiration = Number(await stored(`${name}_expiration`));
    expect(Math.abs(expiration - Date.now() - (exp - iat) * 1000)).toBeLessThan(60_000);
  }
  await store('jwt_token_expiration', String(Date.now() + 1_000));
  await page.reload();
  await page.getByText(admin.email).waitFor();
  expect(calls).toContain('POST /api/auth/token');
  expect(await stored('refresh_token')).not.toBe(first);
  expect(Number(await stored('jwt_token_expiration'))).toBeGreaterThan(Date.now() + 60_000);

  expectedStatuses = [401];
  const token = (await stored('jwt_token'))!;
  // A logout does not end tokens that were made in the same second.
  const { iat } = JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString()) as { iat: number };
  await eventually(() => Date.now() > (iat + 2) * 1_000);
  await ok('POST', '/api/auth/logout', undefined, token);
  const other = await newPage();
  await other.goto('/');
  await other.getByText('Your session has ended. Sign in again.').waitFor();
  // The other tab shows the same.
  await page.getByText('Your session has ended. Sign in again.').waitFor();
});

test('every failure is shown as a sentence', async () => {
  expectedStatuses = [401, 429];
  await signIn('wrong');
  await page.getByRole('alert').filter({ hasText: 'Invalid username or password' }).waitFor();
  await page.route('**/api/auth/login', (route) =>
    route.fulfill({ status: 429, headers: { 'Retry-After': '7' }, body: '{}' }),
  );
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('Too many requests. Wait 7 seconds and try again.').waitFor();
  await page.unroute('**/api/auth/login');
  await page.getByLabel('Password').fill(admin.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Create a key' }).click();
  await page.getByLabel('Description', { exact: true }).fill('of no use');
  await page.route('**/api/apiKey', (route) => route.abort());
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByText('The server cannot be reached. Check the connection and try again.').waitFor();
  expect(complaints.splice(0)).toEqual([expect.stringContaining('ERR_FAILED')]);
});
