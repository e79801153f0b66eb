/** The machine on which the bench suite runs: that of the generators, and of the servers that the suite starts. */
import { cpus, release, totalmem } from 'node:os';

export interface Machine {
  cores: number;
  cpu: string;
  memoryGiB: number;
  kernel: string;
  node: string;
  /** The command that was called. */
  command: string;
}

export function thisMachine(): Machine {
  return {
    cores: cpus().length,
    cpu: cpus()[0]?.model ?? '',
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.version,
    command: `npm run bench -- ${process.argv.slice(2).filter(isPublic).join(' ')}`,
  };
}

export function machineText({ cores, cpu, memoryGiB, kernel, node }: Machine): string {
  return `${cores} × ${cpu}, ${memoryGiB} GiB, Linux ${kernel}, Node ${node}`;
}

/** False for passwords, keys and tokens, because the file may be given to others. */
function isPublic(arg: string, n: number, args: string[]): boolean {
  const secrets = ['--password', '--token', '--api-key'];
  return !secrets.some((name) => arg === name || arg.startsWith(`${name}=`) || args[n - 1] === name);
}
