/** Milliseconds for which this process, with all its threads, had a CPU: a stall of the machine adds nothing. */
export function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
