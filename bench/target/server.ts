/** What a run knows of the server that it measures from outside, and what it cannot know. */
import { networkInterfaces } from 'node:os';

export interface ServerFacts {
  /** As in `https://host:8443`. */
  address: string;
  /** The address belongs to the machine of the generator. */
  isThisMachine: boolean;
  /** What the server says of itself, as in `Millrace 0.1.0`; '' = nothing. */
  version: string;
}

/** True for an address of this machine. */
export function isOwnAddress(address: string): boolean {
  const plain = address.replace(/^::ffff:/, '');
  const own = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
  return plain === '::1' || plain.startsWith('127.') || own.some((each) => each.address === plain);
}

export function serverName({ address, version }: ServerFacts): string {
  return `${address}, ${version === '' ? 'version unknown' : version}`;
}

/** Says what is not known of the machine of the server. */
export function serverMachineText({ isThisMachine }: ServerFacts): string {
  return isThisMachine
    ? 'probably that of the generator, which has its address: then both share the processors'
    : 'unknown: processors, memory, disk, other load and settings cannot be seen from outside';
}
