/**
 * What the kernel of this machine dropped for lack of room. /proc/net/netstat has the connections for which a
 * listening socket had no room: the client repeats its SYN, so a dropped one is a delay, and a client that took its
 * connection for open is reset when the kernel forgets it. /proc/net/softnet_stat has the packets of any connection
 * that came faster than the kernel handled them (`net.core.netdev_max_backlog`).
 */
import { readFileSync } from 'node:fs';

export interface AcceptQueueCounts {
  /** Connections that found the queue of a listening socket full. */
  overflows: number;
  /** All packets to a listening socket that were dropped, those of full queues included. */
  drops: number;
  /** Packets to any socket, of which more came at once than the kernel keeps. */
  packets: number;
}

/** Returns the counts since the start of the machine; zeros when the system does not say. */
export function acceptQueueCounts(): AcceptQueueCounts {
  const counts = countsOf(readStatistics('netstat'));
  const overflows = counts.get('ListenOverflows') ?? 0;
  return { overflows, drops: counts.get('ListenDrops') ?? 0, packets: droppedPackets() };
}

function readStatistics(name: string): string {
  try {
    return readFileSync(`/proc/net/${name}`, 'utf8');
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

/** The file has a line of hexadecimal numbers for each processor; the second number is that of dropped packets. */
function droppedPackets(): number {
  const lines = readStatistics('softnet_stat').split('\n');
  return lines.reduce((sum, line) => sum + Number.parseInt(line.split(/\s+/)[1] ?? '0', 16), 0);
}
