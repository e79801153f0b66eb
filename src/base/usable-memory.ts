/** The memory that the processes of an instance may use: that of the machine, or less in a container with a limit. */
import { totalmem } from 'node:os';

/** Returns bytes. Without a limit, Node names 0 or more than the machine has as that of the container. */
export function usableMemoryBytes(machine = totalmem(), container = process.constrainedMemory()): number {
  return container > 0 && container < machine ? container : machine;
}
