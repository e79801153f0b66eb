// The console: the sign-in form, and the pages of the signed-in user.
import { openApiKeys } from './api-keys.js';
import { call, signedIn, signIn, signOut, watch } from './session.js';
import { docs } from './settings.js';

const element = (id) => document.getElementById(id);

const roles = {
  SYS_ADMIN: 'System administrator',
  TENANT_ADMIN: 'Tenant administrator',
  CUSTOMER_USER: 'Customer user',
};

let keys;
/** The user whose pages are shown. */
let shownUserId;

function showSignIn(notice = '') {
  keys?.close();
  keys = undefined;
  shownUserId = undefined;
  element('console').hidden = true;
  element('sign-in').hidden = false;
  element('sign-in-notice').textContent = notice;
  document.title = 'Sign in · Millrace';
  element(element('username').value === '' ? 'username' : 'password').focus();
}

async function showConsole() {
  let user;
  shownUserId = signedIn().userId;
  try {
    user = await call('GET', '/api/auth/user');
  } catch (error) {
    return showSignIn(error.message);
  }
  element('sign-in').hidden = true;
  element('sign-in-problem').hidden = true;
  element('console').hidden = false;
  element('user-name').textContent = user.name || user.email;
  element('user-role').textContent = roles[user.authority] ?? '';
  document.title = 'API keys · Millrace';
  keys?.close();
  keys = openApiKeys(user, () => showSignIn('Your session has ended. Sign in again.'));
}

element('sign-in-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const button = event.target.querySelector('button');
  const problem = element('sign-in-problem');
  button.disabled = true;
  problem.hidden = true;
  try {
    await signIn(element('username').value.trim(), element('password').value);
    element('password').value = '';
    await showConsole();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
    element('password').select();
  } finally {
    button.disabled = false;
  }
});

element('sign-out').addEventListener('click', async () => {
  try {
    await signOut();
    showSignIn('You are signed out.');
  } catch {
    showSignIn(
      'You are signed out here, but the server could not be reached: your session there ends when its tokens expire.',
    );
  }
});

element('docs-link').hidden = !docs;
element('plain-http').hidden =
  location.protocol === 'https:' || ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);

// Another tab may have signed in or out.
watch(() => {
  const userId = signedIn()?.userId;
  if (userId === shownUserId) return;
  if (userId) showConsole();
  else showSignIn('Your session has ended. Sign in again.');
});
if (signedIn()) await showConsole();
else showSignIn();
