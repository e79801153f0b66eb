// The page of a view link: signs in, runs the view whose id is the last part of the path, shows the table. The token is
// kept for this tab only. Cells are set as plain text, never as markup.
const id = location.pathname.split('/').filter(Boolean).at(-1) ?? '';
const tokenName = 'millrace-jwt';
const rowsShownMax = 5000;

const element = (name) => document.getElementById(name);

function notice(text) {
  element('notice').textContent = text;
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

function showSignIn(text) {
  sessionStorage.removeItem(tokenName);
  notice(text);
  element('sign-in').hidden = false;
  element('table').hidden = true;
  element('run').hidden = true;
  element('csv').hidden = true;
}

function cell(tag, value) {
  const made = document.createElement(tag);
  made.textContent = String(value);
  if (typeof value === 'number') made.className = 'number';
  return made;
}

function row(tag, values) {
  const made = document.createElement('tr');
  made.append(...values.map((value) => cell(tag, value)));
  return made;
}

function showTable({ columnLabels, dataTable }, cut) {
  const table = element('table');
  table.tHead.replaceChildren(row('th', columnLabels));
  const shown = dataTable.slice(0, rowsShownMax);
  table.tBodies[0].replaceChildren(
    ...shown.map((values) =>
      row(
        'td',
        columnLabels.map((label) => values[label]),
      ),
    ),
  );
  table.hidden = false;
  const hidden = dataTable.length > shown.length ? `, ${shown.length} of them shown` : '';
  const rows = dataTable.length === 1 ? 'row' : 'rows';
  notice(`${dataTable.length} ${rows}${hidden}${cut ? ' (there are more)' : ''}`);
}

async function run() {
  notice('Running …');
  const view = await ask('GET', `/apiAnalytics/view/${encodeURIComponent(id)}`);
  if (view.status === 403) return showSignIn('Sign in to see this report.');
  if (!view.ok) return notice(await messageOf(view));
  const { name } = await view.json();
  element('name').textContent = name;
  document.title = name;
  const report = await ask('POST', '/apiAnalytics/publicApi/buildReport', { viewConfigId: id });
  element('run').hidden = false;
  if (!report.ok) return notice(await messageOf(report));
  element('csv').hidden = false;
  showTable(await report.json(), report.headers.get('x-report-truncated') !== null);
}

async function download() {
  const report = await ask('POST', '/apiAnalytics/publicApi/buildReport', { viewConfigId: id }, 'text/csv');
  if (!report.ok) return notice(await messageOf(report));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(await report.blob());
  link.download = `${element('name').textContent}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function signIn(event) {
  event.preventDefault();
  const [username, password] = [element('username').value, element('password').value];
  const response = await ask('POST', '/apiAnalytics/publicApi/auth/login', { username, password });
  if (!response.ok) return notice(await messageOf(response));
  sessionStorage.setItem(tokenName, (await response.json()).token);
  element('password').value = '';
  element('sign-in').hidden = true;
  await run();
}

element('sign-in').addEventListener('submit', (event) => attempt(() => signIn(event)));
element('run').addEventListener('click', () => attempt(run));
element('csv').addEventListener('click', () => attempt(download));

function attempt(work) {
  work().catch(() => notice('The server cannot be reached.'));
}

if (sessionStorage.getItem(tokenName)) attempt(run);
else showSignIn('Sign in to see this report.');
