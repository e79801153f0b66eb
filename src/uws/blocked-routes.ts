/**
 * Notes which caller runs which route, so that a worker that ends abruptly names both. Refuses calls that have ended
 * workers before (`running-work.ts`).
 */
import { type Fault, unavailable } from '../base/errors.ts';
import { anyBlocked, beginEvent, callerOfToken, endEvent, isBlocked, type Work } from '../base/running-work.ts';
import type { Exchange } from './exchange.ts';

export function refuseBlocked(work: Work): void {
  if (anyBlocked() && isBlocked(work)) throw blockedFault();
}

function blockedFault(): Fault {
  return unavailable('blocked', 'Requests like this one ended this service twice; try again in ten minutes.', 600);
}

/** Marks the work of a route whose parameter is a token while `receive` runs. */
export function noted<Rest>(
  what: string,
  receive: (exchange: Exchange, token: string, rest: Rest) => void,
): (exchange: Exchange, token: string, rest: Rest) => void {
  return (exchange, token, rest) => {
    if (anyBlocked() && isBlocked({ what, caller: callerOfToken(token) })) {
      exchange.refuse(blockedFault());
      return;
    }
    beginEvent(what, token);
    receive(exchange, token, rest);
    endEvent();
  };
}
