/** Reasons of refusals in MQTT as words, with the Reason String of MQTT 5 where a server sends one. */
import { saidOf } from '../counts.ts';

/** Reason codes of MQTT 5 from here on are refusals [MQTT-2.4]. */
export const refusedFrom = 0x80;

/** Return codes of CONNACK in MQTT 3.1.1, and reason codes of MQTT 5. */
const names: Record<number, string> = {
  1: 'unacceptable protocol version',
  2: 'identifier rejected',
  3: 'server unavailable',
  4: 'bad user name or password',
  5: 'not authorized',
  128: 'unspecified error',
  129: 'malformed packet',
  130: 'protocol error',
  131: 'implementation specific error',
  132: 'unsupported protocol version',
  133: 'client identifier not valid',
  134: 'bad user name or password',
  135: 'not authorized',
  136: 'server unavailable',
  137: 'server busy',
  138: 'banned',
  139: 'server shutting down',
  140: 'bad authentication method',
  141: 'keep alive timeout',
  142: 'session taken over',
  144: 'topic name invalid',
  147: 'receive maximum exceeded',
  149: 'packet too large',
  150: 'message rate too high',
  151: 'quota exceeded',
  152: 'administrative action',
  153: 'payload format invalid',
  156: 'use another server',
  157: 'server moved',
  159: 'connection rate exceeded',
};

/** As in `CONNACK 5 (not authorized)`, and what the server says after a colon. */
export function refusalText(packet: 'CONNACK' | 'PUBACK' | 'DISCONNECT', code: number, text: string): string {
  const number = code < refusedFrom ? String(code) : `0x${code.toString(16)}`;
  const name = packet === 'DISCONNECT' && code < refusedFrom ? undefined : names[code];
  return `${packet} ${number}${name === undefined ? '' : ` (${name})`}${text === '' ? '' : `: ${text}`}`;
}

const stringIds = { reasonString: 0x1f, assignedClientId: 0x12, serverReference: 0x1c, userProperty: 0x26 };

/** Returns the Reason String among the properties that begin at `at`; '' when there is none. */
export function reasonString(bytes: Buffer, at: number, end: number): string {
  let [length, shift, digit, next] = [0, 0, 0x80, at];
  while (digit & 0x80 && next < end) {
    digit = bytes[next++]!;
    length |= (digit & 0x7f) << shift;
    shift += 7;
  }
  const until = Math.min(end, next + length);
  const string = () => {
    const from = next + 2;
    next = from + bytes.readUInt16BE(next);
    return bytes.toString('utf8', from, Math.min(next, until));
  };
  while (next + 3 <= until) {
    const id = bytes[next++];
    if (id === stringIds.reasonString) return saidOf(string());
    if (id === stringIds.userProperty) string();
    else if (id !== stringIds.assignedClientId && id !== stringIds.serverReference) return '';
    if (next + 2 > until) return '';
    string();
  }
  return '';
}
