/**
 * The page of an activation or reset link: two fields for a password, as plain HTML without a script, so that the page
 * works wherever the link is opened. The form posts to the same path to which API clients post JSON.
 */
import { createHash } from 'node:crypto';
import type { HttpResponse } from '../uws/server.ts';

export type PasswordPage = 'activate' | 'resetPassword';

/** Name of the token in the link, the form and the JSON body. */
export const tokenNames = { activate: 'activateToken', resetPassword: 'resetToken' } as const;

const titles = { activate: 'Choose a password', resetPassword: 'Choose a new password' };

const revokeField =
  '<label class="tick"><input type="checkbox" name="revokeApiKeys" value="true">Revoke my API keys as well</label>';

const style = `body{font:16px/1.5 system-ui,sans-serif;max-width:22rem;margin:12vh auto;padding:0 1rem}
label{display:block;margin:1rem 0}input{display:block;box-sizing:border-box;width:100%;padding:.5rem;font:inherit}
.tick input{display:inline;width:auto;margin-right:.5rem}
button{padding:.5rem 1rem;font:inherit}`;
const styleHash = createHash('sha256').update(style).digest('base64');

/** `fault`: the error of the last try. */
export function passwordForm(page: PasswordPage, token: string, minimumLength: number, fault = ''): HttpResponse {
  const field = (label: string, name: string) =>
    `<label>${label}<input type="password" name="${name}" autocomplete="new-password" required minlength="${minimumLength}" maxlength="72"></label>`;
  const content = `${fault ? `<p role="alert">${escaped(fault)}</p>` : ''}
<form method="post" action="/api/noauth/${page}">
<input type="hidden" name="${tokenNames[page]}" value="${escaped(token)}">
${field('Password', 'password')}
${field('The same again', 'repeated')}
${page === 'resetPassword' ? revokeField : ''}
<button>Save</button>
</form>`;
  return htmlPage(fault ? 400 : 200, titles[page], content);
}

export function passwordSaved(): HttpResponse {
  return htmlPage(200, 'Saved', '<p>Your password is saved. You can <a href="/">sign in</a> with it now.</p>');
}

function htmlPage(status: number, title: string, content: string): HttpResponse {
  const body = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${title}</title>
<style>${style}</style></head>
<body><h1>${title}</h1>
${content}
</body></html>
`;
  const headers = {
    // The token must not leave this page but by its form.
    'Content-Security-Policy': `default-src 'none'; style-src 'sha256-${styleHash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`,
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
  };
  return { status, contentType: 'text/html; charset=utf-8', headers, body };
}

const entities: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => entities[character]!);
}
