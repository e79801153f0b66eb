// The page of the reports: `/trendz/view/<id>` runs a view and shows its table, `/apiAnalytics` lists the saved views.
// Signs in, or takes the token of `?jwt=` and removes it from the address. The token is kept for this tab only. Cells
// are set as plain text, never as markup.
const [, id = ''] = /^\/trendz\/view\/([^/]+)/.exec(location.pathname) ?? [];
const tokenName = 'millrace-jwt';
const rowsShownMax = 5000;
const viewsShownMax = 1000;

const element = (name) => document.getElementById(name);

function notice(text) {
  element('notice').textContent = text;
}

/** Shows what went wrong, where the reader is; '' = nothing did. */
function problem(text) {
  for (const name of ['problem', 'sign-in-problem']) {
    element(name).textContent = text;
    element(name).hidden = text === '';
  }
}

async function ask(method, path, body, accept = 'application/json') {
  const token = sessionStorage.getItem(tokenName);
  return fetch(path, {
    method,
    headers: {
      accept,
      ...(token && { jwt: token }),
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
}

async function messageOf(response) {
  try {
    return (await response.json()).message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

async function fail(response) {
  notice('');
  problem(await messageOf(response));
}

function show(signedIn) {
  element('sign-in').hidden = signedIn;
  element('report').hidden = !signedIn;
}

function showSignIn(text) {
  sessionStorage.removeItem(tokenName);
  for (const name of ['table', 'run', 'csv']) element(name).hidden = true;
  element('sign-in-notice').textContent = text;
  show(false);
}

function cell(tag, value) {
  const made = document.createElement(tag);
  made.textContent = String(value);
  if (typeof value === 'number') made.className = 'number';
  return made;
}

function row(cells) {
  const made = document.createElement('tr');
  made.append(...cells);
  return made;
}

function fill(labels, rows) {
  const table = element('table');
  table.tHead.replaceChildren(row(labels.map((label) => cell('th', label))));
  table.tBodies[0].replaceChildren(...rows.map(row));
  table.hidden = rows.length === 0;
}

function showTable({ columnLabels, dataTable }, cut) {
  const shown = dataTable.slice(0, rowsShownMax);
  fill(
    columnLabels,
    shown.map((values) => columnLabels.map((label) => cell('td', values[label]))),
  );
  alignHeads(shown[0] ?? {}, columnLabels);
  const hidden = dataTable.length > shown.length ? `, ${shown.length} of them shown` : '';
  const rows = dataTable.length === 1 ? 'row' : 'rows';
  notice(`${dataTable.length} ${rows}${hidden}${cut ? ' (there are more)' : ''}`);
}

/** The head of a column of numbers is where its numbers are. */
function alignHeads(values, labels) {
  const heads = element('table').tHead.rows[0].cells;
  for (const [column, label] of labels.entries()) {
    heads[column].classList.toggle('number', typeof values[label] === 'number');
  }
}

function link({ id: viewId, name }) {
  const made = document.createElement('td');
  const anchor = document.createElement('a');
  anchor.href = `/trendz/view/${encodeURIComponent(viewId)}`;
  anchor.textContent = name;
  made.append(anchor);
  return made;
}

async function listViews() {
  title('Reports');
  const response = await ask(
    'GET',
    `/apiAnalytics/views?pageSize=${viewsShownMax}&page=0&sortProperty=name&sortOrder=ASC`,
  );
  if (response.status === 403) return showSignIn('Sign in to see the reports.');
  show(true);
  if (!response.ok) return fail(response);
  const { data, totalElements } = await response.json();
  fill(
    ['Saved views'],
    data.map((view) => [link(view)]),
  );
  const none = 'No view is saved yet: POST /apiAnalytics/view saves one.';
  notice(totalElements === 0 ? none : `${totalElements} ${totalElements === 1 ? 'view' : 'views'}`);
}

function title(text) {
  element('name').textContent = text;
  document.title = text;
}

async function run() {
  problem('');
  if (id === '') return listViews();
  notice('Running …');
  const view = await ask('GET', `/apiAnalytics/view/${encodeURIComponent(id)}`);
  if (view.status === 403) return showSignIn('Sign in to see this report.');
  show(true);
  if (!view.ok) return fail(view);
  title((await view.json()).name);
  const report = await ask('POST', '/apiAnalytics/publicApi/buildReport', { viewConfigId: id });
  element('run').hidden = false;
  if (!report.ok) return fail(report);
  element('csv').hidden = false;
  showTable(await report.json(), report.headers.get('x-report-truncated') !== null);
}

async function download() {
  const report = await ask('POST', '/apiAnalytics/publicApi/buildReport', { viewConfigId: id }, 'text/csv');
  if (!report.ok) return fail(report);
  const anchor = document.createElement('a');
  anchor.href = URL.createObjectURL(await report.blob());
  anchor.download = `${element('name').textContent}.csv`;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}

async function signIn(event) {
  event.preventDefault();
  const [username, password] = [element('username').value, element('password').value];
  const response = await ask('POST', '/apiAnalytics/publicApi/auth/login', { username, password });
  if (!response.ok) return problem(await messageOf(response));
  sessionStorage.setItem(tokenName, (await response.json()).token);
  element('password').value = '';
  await run();
}

/** A token in the address would stay in the history of the browser. */
function takeToken() {
  const address = new URL(location.href);
  const token = address.searchParams.get('jwt');
  if (!token) return;
  sessionStorage.setItem(tokenName, token);
  address.searchParams.delete('jwt');
  history.replaceState(null, '', address);
}

function attempt(work) {
  work().catch(() => {
    notice('');
    problem('The server cannot be reached.');
  });
}

element('sign-in').addEventListener('submit', (event) => attempt(() => signIn(event)));
element('run').addEventListener('click', () => attempt(run));
element('csv').addEventListener('click', () => attempt(download));
element('sign-out').addEventListener('click', () => showSignIn('You are signed out.'));

takeToken();
if (sessionStorage.getItem(tokenName)) attempt(run);
else showSignIn(id === '' ? 'Sign in to see the reports.' : 'Sign in to see this report.');
