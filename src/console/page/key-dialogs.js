// The dialogs of API keys: create a key and show its value once; ask before a key is revoked.
import { call } from './session.js';

const dayMs = 24 * 3_600_000;
const copiedMs = 2_000;

const element = (id) => document.getElementById(id);

/** Shows the form until a key is created or the user cancels. Returns whether there is a new key. */
export async function createKey(userId) {
  const dialog = element('create');
  const form = dialog.querySelector('form');
  form.reset();
  showDate(form);
  const key = await ask(dialog, () => {
    const { description, enabled } = form.elements;
    return call('POST', '/api/apiKey', {
      userId: { entityType: 'USER', id: userId },
      description: description.value.trim(),
      enabled: enabled.checked,
      expirationTime: expirationOf(form),
    });
  });
  if (!key) return false;
  await showValue(key.value);
  return true;
}

/** Returns whether the key is revoked. */
export async function revokeKey(key) {
  element('revoked-description').textContent = key.description;
  return await ask(element('revoke'), async () => {
    try {
      await call('DELETE', `/api/apiKey/${key.id.id}`);
    } catch (error) {
      // The key is already revoked.
      if (error.status !== 404) throw error;
    }
    return true;
  });
}

/** Opens a dialog. Returns the result of `act`, which runs when the form is sent; undefined when the user cancels. */
function ask(dialog, act) {
  const form = dialog.querySelector('form');
  const problem = dialog.querySelector('.problem');
  const button = form.querySelector('button[type="submit"]');
  let result;
  problem.hidden = true;
  return new Promise((resolve, reject) => {
    const closing = new AbortController();
    const { signal } = closing;
    const submit = async (event) => {
      event.preventDefault();
      if (button.disabled) return;
      button.disabled = true;
      problem.hidden = true;
      try {
        result = await act();
        dialog.close();
      } catch (error) {
        if (error.status === 401) {
          dialog.close();
          reject(error);
        }
        problem.textContent = error.message;
        problem.hidden = false;
      } finally {
        button.disabled = false;
      }
    };
    const close = () => {
      closing.abort();
      resolve(result);
    };
    form.addEventListener('submit', submit, { signal });
    form.querySelector('.cancel').addEventListener('click', () => dialog.close(), { signal });
    dialog.addEventListener('close', close, { signal });
    dialog.showModal();
  });
}

function showValue(value) {
  const dialog = element('created');
  const shown = element('key-value');
  shown.value = value;
  element('key-example').textContent = value;
  element('copied').textContent = '';
  return new Promise((resolve) => {
    const closing = new AbortController();
    const { signal } = closing;
    const copy = async () => {
      const isCopied = await copied(shown);
      element('copied').textContent = isCopied
        ? 'Copied.'
        : 'Copying is not allowed here: it is selected, press Ctrl+C.';
      if (isCopied) setTimeout(() => (element('copied').textContent = ''), copiedMs);
    };
    // The Escape key must not close the dialog: the value would be lost.
    dialog.addEventListener('cancel', (event) => event.preventDefault(), { signal });
    shown.addEventListener('focus', () => shown.select(), { signal });
    element('copy-key').addEventListener('click', copy, { signal });
    dialog.addEventListener(
      'close',
      () => {
        closing.abort();
        shown.value = '';
        element('key-example').textContent = '';
        resolve();
      },
      { signal },
    );
    dialog.showModal();
    element('copy-key').focus();
  });
}

/** Over plain HTTP browsers offer only the older function. */
async function copied(input) {
  try {
    await navigator.clipboard.writeText(input.value);
    return true;
  } catch {
    input.focus();
    input.select();
    return document.execCommand('copy');
  }
}

function expirationOf({ elements: { expires, date } }) {
  if (expires.value === 'never') return 0;
  if (expires.value !== 'date') return Date.now() + Number(expires.value) * dayMs;
  const [year, month, day] = date.value.split('-').map(Number);
  return new Date(year, month - 1, day + 1).getTime() - 1;
}

function showDate({ elements: { expires, date } }) {
  const isWanted = expires.value === 'date';
  element('expires-date').hidden = !isWanted;
  date.required = isWanted;
  date.disabled = !isWanted;
  const now = new Date();
  date.min = [now.getFullYear(), now.getMonth() + 1, now.getDate()]
    .map((part) => String(part).padStart(2, '0'))
    .join('-');
  date.max = '2999-12-31';
}

element('create')
  .querySelector('select')
  .addEventListener('change', (event) => showDate(event.target.form));
