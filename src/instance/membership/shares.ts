/** The share of each host in the MQTT connections of an installation: by its number of workers. */
import { type FleetHost, isLive } from './host-store.ts';

type CountedHost = Pick<FleetHost, 'name' | 'workers' | 'mqttConnections' | 'ageMs'>;

interface HostShare<Host> {
  host: Host;
  connections: number;
  share: number;
  /** The connections above the share. */
  surplus: number;
}

/** Returns the share of each live host that takes MQTT connections. */
export function sharesOf<Host extends CountedHost>(hosts: Host[]): HostShare<Host>[] {
  const taking = hosts.filter((host) => isLive(host) && host.mqttConnections !== null);
  const connections = taking.reduce((sum, host) => sum + host.mqttConnections!, 0);
  const workers = taking.reduce((sum, host) => sum + host.workers, 0);
  return taking.map((host) => {
    const own = host.mqttConnections!;
    const share = Math.ceil((connections * host.workers) / workers);
    return { host, connections: own, share, surplus: Math.max(0, own - share) };
  });
}
