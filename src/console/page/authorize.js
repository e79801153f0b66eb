// The credentials of calls from the API page, as a plugin of swagger-ui. Both schemes of the document write the same
// header, so one value is sent: a JWT (from the login form here, else from the console's session) before an API key.
import { CallError, send } from '/console/call.js';
import { claimsOf, expirationOf } from '/console/session.js';

const keyScheme = 'ApiKeyForm';
const loginScheme = 'HttpLoginForm';
const keyWord = 'ApiKey ';

/** `currentToken`: returns the JWT of the console's session; undefined when no user is signed in. */
export function authorization({ currentToken }) {
  return () => ({
    wrapComponents: {
      apiKeyAuth:
        (Original, { React }) =>
        (props) =>
          React.createElement(props.name === loginScheme ? LoginForm : Original, { ...props, React }),
    },
    statePlugins: {
      auth: { wrapActions: { authorizeWithPersistOption: authorize } },
      spec: {
        wrapActions: {
          executeRequest:
            (original, { authActions }) =>
            async (request) => {
              const { securities = {} } = request;
              const authorized = { ...securities.authorized };
              if (isOver(authorized[loginScheme])) {
                authActions.logoutWithPersistOption([loginScheme]);
                delete authorized[loginScheme];
              }
              const token = authorized[loginScheme] ? undefined : await sessionToken(currentToken);
              if (token) authorized[loginScheme] = { value: `Bearer ${token}` };
              if (authorized[loginScheme]) delete authorized[keyScheme];
              return original({ ...request, securities: { ...securities, authorized } });
            },
        },
      },
    },
  });
}

/** Describes the user of the next call in a sentence. */
export function callerOf(authorized, session) {
  const login = authorized[loginScheme];
  if (login && !isOver(login)) return `Calls go out as ${claimsOf(login.value).sub}, signed in on this page.`;
  if (session) return `Calls go out as ${session.sub}, signed in at the console.`;
  if (authorized[keyScheme]) return 'Calls go out with your API key.';
  return 'No user is signed in: sign in at the console, or press Authorize.';
}

/** Turns the form of a scheme into the value of the header. */
function authorize(original, { errActions }) {
  return async (payload) => {
    // A logout leaves an empty string in the form.
    const given = Object.fromEntries(Object.entries(payload).filter(([, entry]) => entry));
    for (const authId of Object.keys(given)) errActions.clear({ authId, type: 'auth', source: 'auth' });
    try {
      if (given[keyScheme]) given[keyScheme] = withKeyWord(given[keyScheme]);
      if (given[loginScheme]) given[loginScheme] = await signedInBy(given[loginScheme]);
    } catch (error) {
      errActions.newAuthErr({ authId: loginScheme, level: 'error', source: 'auth', message: error.message });
      return;
    }
    original(given);
  };
}

function withKeyWord(entry) {
  const value = (entry.value ?? '').trim();
  return { ...entry, value: value === '' || value.startsWith(keyWord) ? value : keyWord + value };
}

async function signedInBy({ value, schema, ...entry }) {
  const { username = '', password = '' } = value ?? {};
  if (username.trim() === '' || password === '') throw new CallError(0, 'Give a user name and a password.');
  const path = schema.get('x-login-path') ?? '/api/auth/login';
  const { token } = await send('POST', path, { username: username.trim(), password });
  return { ...entry, schema, value: `Bearer ${token}`, expiration: expirationOf(token) };
}

function isOver(login) {
  return login !== undefined && !(login.expiration > Date.now());
}

/** When the session cannot be renewed, the call is sent with the old token and fails with a reason. */
async function sessionToken(currentToken) {
  try {
    return await currentToken();
  } catch {
    return undefined;
  }
}

/** The form for user name and password, in place of the field for a header's value. */
function LoginForm({ React, name, schema, authorized, errSelectors, onChange, getComponent }) {
  const [given, setGiven] = React.useState({});
  const h = React.createElement;
  const AuthError = getComponent('authError');
  const Markdown = getComponent('Markdown', true);
  const login = authorized?.getIn([name, 'value']);
  const field = (label, property, type, autoComplete) => {
    const change = (event) => {
      const next = { ...given, [property]: event.target.value };
      setGiven(next);
      onChange({ name, schema, value: next });
    };
    const input = h('input', { name: property, type, autoComplete, required: true, onChange: change });
    return h('label', { key: property }, label, input);
  };
  const errors = errSelectors.allErrors().filter((error) => error.get('authId') === name);
  return h(
    'div',
    { className: 'login-form' },
    h('h4', null, h('code', null, name), ' (user name and password)'),
    h(Markdown, { source: schema.get('description') }),
    login
      ? h('h6', null, `Authorized as ${claimsOf(login).sub}`)
      : [
          field('User name', 'username', 'email', 'username'),
          field('Password', 'password', 'password', 'current-password'),
        ],
    errors.valueSeq().map((error, key) => h(AuthError, { error, key })),
  );
}
