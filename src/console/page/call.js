// Makes one call of the REST API, and turns a failure into a sentence for the user of the page.

const answerMsMax = 30_000;

/** `status` 0: no answer arrived. */
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function send(method, path, body, token) {
  let response;
  let text;
  try {
    response = await fetch(path, {
      method,
      headers: {
        ...(body !== undefined && { 'Content-Type': 'application/json' }),
        ...(token && { 'X-Authorization': `Bearer ${token}` }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(answerMsMax),
    });
    text = await response.text();
  } catch (error) {
    throw new CallError(0, withoutAnswer(error));
  }
  const answer = parsed(text);
  if (!response.ok) throw new CallError(response.status, sentence(response, answer));
  return answer;
}

function parsed(text) {
  try {
    return text === '' ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}

function withoutAnswer(error) {
  if (error.name === 'TimeoutError')
    return `The server did not answer within ${answerMsMax / 1000} seconds. Try again.`;
  return 'The server cannot be reached. Check the connection and try again.';
}

function sentence(response, answer) {
  const { status } = response;
  const message = typeof answer?.message === 'string' ? answer.message : '';
  if (status === 429) return `Too many requests. Wait ${waitOf(response)} and try again.`;
  if (status === 503)
    return `The server has too much to do, or a part of it is unavailable. Try again soon. ${message}`.trim();
  if (status >= 500) return `The server failed (${status}). Its log has the details.`;
  return message || `The server answered ${status}.`;
}

function waitOf(response) {
  const seconds = Number(response.headers.get('retry-after'));
  if (!(seconds > 0)) return 'a moment';
  return seconds === 1 ? 'a second' : `${seconds} seconds`;
}
