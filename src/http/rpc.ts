/**
 * Commands over HTTP: GET rpc waits for a command, POST rpc/{id} replies to a command, POST rpc is a call of the
 * device. Order of checks: parameters and presence of a body, token, rate limit, JSON.
 */
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type RpcRequest, replyId, replyText } from '../rpc/rpc.ts';
import type { Rpc } from '../rpc/send.ts';
import type { RpcSessions } from '../rpc/sessions.ts';
import type { Calls } from '../rules/calls.ts';
import { type Answer, type Exchange, faultAnswer } from '../uws/exchange.ts';
import { requireBody } from '../uws/missing-body.ts';
import type { HttpRequest } from '../uws/request.ts';
import type { HttpHandler, HttpServer } from '../uws/server.ts';
import { readJson } from '../value/json.ts';
import type { ReadBody } from '../value/lenient.ts';
import type { DeviceAuth } from './device-auth.ts';
import type { LongPolls } from './long-poll.ts';

interface RpcDoorDeps {
  server: HttpServer;
  deviceAuth: DeviceAuth;
  polls: LongPolls;
  sessions: RpcSessions;
  rpc: Rpc;
  calls: Calls;
  readBody: ReadBody;
  /** True: the answer at the deadline has no body. */
  emptyPollTimeout: boolean;
}

const json = { status: 200, contentType: 'application/json' };
const acknowledged: Answer = { ...json, body: '{"result":"ok"}' };

export function rpcDoor(deps: RpcDoorDeps): void {
  const { server, deviceAuth, polls, sessions, rpc, calls, readBody } = deps;
  const atDeadline = deps.emptyPollTimeout ? undefined : timeoutAnswer;

  const admitBody = (request: HttpRequest) => deviceAuth.admitBody(request.params[0]!, request);

  const poll = async (exchange: Exchange, token: string, query: string): Promise<void> => {
    try {
      const waitMs = polls.waitMs(query);
      const device = await deviceAuth.admit(token, exchange);
      const poll = polls.hold(exchange, token, device, waitMs, atDeadline);
      if (!poll) return;
      poll.onEnd = sessions.listen(device.number, {
        deliver(request, confirm) {
          const isTaken = poll.answer({ ...json, body: requestText(request) });
          if (isTaken) confirm(true);
          return isTaken;
        },
        close: (reason) => void polls.recheck(poll, reason),
      });
    } catch (error) {
      deviceAuth.refuse(exchange, error, token);
    }
  };

  server.waitingGet('/api/v1/:token/rpc', (exchange, token, query) => void poll(exchange, token, query));

  const reply: HttpHandler = async (request) => {
    const { params, body } = request;
    const id = replyId(params[1]!);
    if (id === undefined) throw badRequest('rpc_id', 'The id of a command is a whole number of 32 bits.');
    requireBody(body);
    const device = await deviceAuth.count(params[0]!, request);
    const text = replyText(body, readBody);
    deviceAuth.admission.touch(device);
    await rpc.reply(device, id, text);
    return acknowledged;
  };

  const call: HttpHandler = async (request) => {
    const { params, body, aborted } = request;
    requireBody(body);
    const device = await deviceAuth.count(params[0]!, request);
    const document = readBody(body, readJson);
    deviceAuth.admission.touch(device);
    const answer = await calls.answer(device, document, aborted);
    return answer === undefined ? { status: 408 } : { ...json, body: answer };
  };

  const bytesMax = limits.rpcBodyBytesMax;
  server.route('POST', '/api/v1/:token/rpc/:id', deviceAuth.recorded(reply), bytesMax, admitBody);
  server.route('POST', '/api/v1/:token/rpc', deviceAuth.recorded(call), bytesMax, admitBody);
}

function requestText({ id, method, params }: RpcRequest): string {
  return `{"id":${id},"method":${JSON.stringify(method)},"params":${params}}`;
}

/** The answer of all expired polls. The body is made for each poll, because it contains the time. */
const timeoutAnswer: Answer = {
  status: 408,
  contentType: 'application/json',
  get body() {
    const fault = new Fault('rpc_poll_timeout', 'No command came in time; poll again.');
    return faultAnswer(fault).body as string;
  },
};
