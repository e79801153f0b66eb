// The page of API keys: lists the keys of the signed-in user, newest first, in pages.
import { createKey, revokeKey } from './key-dialogs.js';
import { call } from './session.js';

const rowsMax = 20;
const searchWaitMs = 250;

const element = (id) => document.getElementById(id);
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'short' });

/** `close` releases the page; `onEnded` is called when the session has ended. */
export function openApiKeys(user, onEnded) {
  const closing = new AbortController();
  const { signal } = closing;
  const userId = user.id.id;
  let page = 0;
  /** Counts requests: only the answer to the latest one is shown. */
  let asked = 0;

  async function list() {
    asked += 1;
    const mine = asked;
    const textSearch = element('search').value.trim();
    const query = new URLSearchParams({ pageSize: rowsMax, page, sortProperty: 'createdTime', sortOrder: 'DESC' });
    if (textSearch) query.set('textSearch', textSearch);
    const keys = await call('GET', `/api/apiKeys/${userId}?${query}`);
    if (mine !== asked || signal.aborted) return;
    if (keys.data.length === 0 && page > 0) {
      page = Math.max(0, keys.totalPages - 1);
      await list();
      return;
    }
    show(keys, textSearch);
  }

  function show({ data, totalElements, totalPages, hasNext }, textSearch) {
    element('keys').tBodies[0].replaceChildren(...data.map(row));
    element('keys').hidden = data.length === 0;
    element('no-keys').hidden = data.length > 0;
    element('no-keys').textContent = textSearch
      ? 'No description contains this text.'
      : 'You have no API keys yet. Create one for each program that calls the API, so that each can be revoked alone.';
    element('count').textContent = countOf(data.length, totalElements);
    element('pages').hidden = totalPages < 2;
    element('newer').disabled = page === 0;
    element('older').disabled = !hasNext;
  }

  function countOf(rows, total) {
    if (total === 0) return '';
    if (rows === total) return total === 1 ? '1 key' : `${total} keys`;
    return `${page * rowsMax + 1}–${page * rowsMax + rows} of ${total} keys`;
  }

  function row(key) {
    const made = element('key-row').content.cloneNode(true).firstElementChild;
    const part = (name) => made.querySelector(`.${name}`);
    const state = key.expired ? 'expired' : key.enabled ? 'enabled' : 'disabled';
    made.dataset.keyId = key.id.id;
    part('description').textContent = key.description;
    part('state').textContent = state;
    part('state').classList.add(state);
    showTime(part('created'), key.createdTime);
    if (key.expirationTime > 0) showTime(part('expires'), key.expirationTime);
    else part('expires').textContent = 'never';
    part('switch').textContent = key.enabled ? 'Disable' : 'Enable';
    part('switch').hidden = key.expired;
    for (const name of ['switch', 'revoke']) {
      part(name).setAttribute('aria-label', `${part(name).textContent} ${key.description}`);
    }
    part('switch').addEventListener('click', () => attempt(() => enable(key)));
    part('revoke').addEventListener('click', () => attempt(() => revoke(key)));
    return made;
  }

  async function enable(key) {
    await call('PUT', `/api/apiKey/${key.id.id}/enabled/${!key.enabled}`);
    await list();
    document.querySelector(`[data-key-id="${key.id.id}"] .switch`)?.focus();
  }

  async function revoke(key) {
    if (!(await revokeKey(key))) return;
    await list();
    element('content').focus();
  }

  async function create() {
    if (!(await createKey(userId))) return;
    page = 0;
    element('search').value = '';
    await list();
  }

  async function attempt(work) {
    const problem = element('problem');
    try {
      await work();
      problem.hidden = true;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return onEnded();
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }

  const on = (id, event, listener) => element(id).addEventListener(event, listener, { signal });
  const turnTo = (next) => {
    page = next;
    attempt(list);
  };
  let typed;
  on('new-key', 'click', () => attempt(create));
  on('newer', 'click', () => turnTo(page - 1));
  on('older', 'click', () => turnTo(page + 1));
  on('search', 'input', () => {
    clearTimeout(typed);
    typed = setTimeout(() => turnTo(0), searchWaitMs);
  });
  element('keys').tBodies[0].replaceChildren();
  element('search').value = '';
  attempt(list);

  return {
    close() {
      closing.abort();
      clearTimeout(typed);
      for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close();
      element('keys').tBodies[0].replaceChildren();
    },
  };
}

function showTime(time, milliseconds) {
  const date = new Date(milliseconds);
  if (Number.isNaN(date.getTime())) {
    time.textContent = 'after the year 9999';
    return;
  }
  time.dateTime = date.toISOString();
  time.textContent = moment.format(date);
}
