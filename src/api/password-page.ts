/**
 * The page of an activation or reset link: two fields for a password, as plain HTML without a script, so that the page
 * works wherever the link is opened. The form posts to the same path to which API clients post JSON.
 */
import { passwordPolicy } from '../auth/password-policy.ts';
import type { Answer } from '../uws/exchange.ts';

export type PasswordPage = 'activate' | 'resetPassword';

/** Name of the token in the link, the form and the JSON body. */
export const tokenNames = { activate: 'activateToken', resetPassword: 'resetToken' } as const;

const titles = { activate: 'Choose a password', resetPassword: 'Choose a new password' };

const revokeField =
  '<label class="check"><input type="checkbox" name="revokeApiKeys" value="true"> Revoke my API keys as well</label>';

/** `fault`: the error of the last try. */
export function passwordForm(page: PasswordPage, token: string, fault = ''): Answer {
  const { minimumLength, maximumLength } = passwordPolicy;
  const field = (label: string, name: string) =>
    `<label>${label}<input type="password" name="${name}" autocomplete="new-password" required minlength="${minimumLength}" maxlength="${maximumLength}"></label>`;
  const content = `<form class="card" method="post" action="/api/noauth/${page}">
${heading(titles[page])}
${fault ? `<p class="problem" role="alert">${escaped(fault)}</p>` : ''}
<input type="hidden" name="${tokenNames[page]}" value="${escaped(token)}">
${field('Password', 'password')}
${field('The same again', 'repeated')}
${page === 'resetPassword' ? revokeField : ''}
<button class="primary">Save</button>
</form>`;
  return htmlPage(fault ? 400 : 200, titles[page], content);
}

export function passwordSaved(): Answer {
  const content = `<div class="card">
${heading('Saved')}
<p>Your password is saved. You can <a href="/">sign in</a> with it now.</p>
</div>`;
  return htmlPage(200, 'Saved', content);
}

function heading(title: string): string {
  return `<h1><img src="/console/icon.svg" alt="" width="36" height="36"> ${title}</h1>`;
}

function htmlPage(status: number, title: string, content: string): Answer {
  const body = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${title}</title>
<link rel="icon" href="/console/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/console/base.css"></head>
<body><main class="sign-in">
${content}
</main></body></html>
`;
  const headers = {
    // The token must not leave this page but by its form.
    'Content-Security-Policy':
      "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
  };
  return { status, contentType: 'text/html; charset=utf-8', headers, body };
}

const entities: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => entities[character]!);
}
