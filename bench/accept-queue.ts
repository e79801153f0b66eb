/**
 * What the kernel of this machine did with connections for which a listening socket had no room, from
 * /proc/net/netstat. The client repeats its SYN, so a dropped one is a delay. A client that took its connection for
 * open is reset when the kernel forgets it.
 */
import { readFileSync } from 'node:fs';

export interface AcceptQueueCounts {
  /** Connections that found the queue of a listening socket full. */
  overflows: number;
  /** All packets to a listening socket that were dropped, those of full queues included. */
  drops: number;
}

/** Returns the counts since the start of the machine; zeros when the system does not say. */
export function acceptQueueCounts(): AcceptQueueCounts {
  const counts = countsOf(readNetstat());
  return { overflows: counts.get('ListenOverflows') ?? 0, drops: counts.get('ListenDrops') ?? 0 };
}

function readNetstat(): string {
  try {
    return readFileSync('/proc/net/netstat', 'utf8');
  } catch {
    return '';
  }
}

/** The file has pairs of lines: the names of the counts of a protocol, and their values. */
function countsOf(text: string): Map<string, number> {
  const lines = text.split('\n').filter((line) => line.startsWith('TcpExt:'));
  const [names = [], values = []] = lines.map((line) => line.split(' ').slice(1));
  return new Map(names.map((name, n) => [name, Number(values[n])]));
}
