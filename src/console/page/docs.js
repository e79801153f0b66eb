// The interactive page of the API document. A user who is signed in at the console can make calls at once; "Authorize"
// takes an API key or another sign-in. The bar names the user of the next call.
import { currentToken, signedIn, watch } from '/console/session.js';
import { authorization, callerOf } from './authorize.js';

const element = (id) => document.getElementById(id);

async function configuration() {
  const response = await fetch('/v3/api-docs/swagger-config');
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  return await response.json();
}

function showCaller(system) {
  element('caller').textContent = callerOf(system.authSelectors.authorized().toJS(), signedIn());
}

try {
  const { url, persistAuthorization } = await configuration();
  const system = window.SwaggerUIBundle({
    domNode: element('swagger-ui'),
    url,
    persistAuthorization,
    plugins: [authorization({ currentToken })],
    deepLinking: true,
    docExpansion: 'none',
    filter: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    // Without this setting swagger-ui sends the document to a public validator.
    validatorUrl: null,
  });
  system.getStore().subscribe(() => showCaller(system));
  watch(() => showCaller(system));
  showCaller(system);
} catch (error) {
  element('problem').textContent = `The API document cannot be shown. ${error.message}`;
  element('problem').hidden = false;
}
