/** The state of this instance: made by the primary, sent to every child, and answered by the health pages. */
import type { ClockState } from '../clock/clock-offset.ts';

export type PartState = 'up' | 'starting' | 'away';

export interface InstanceState {
  status: 'starting' | 'ready' | 'degraded' | 'refusing' | 'mismatch' | 'copy' | 'draining';
  parts: Record<string, PartState>;
  /** The reasons of `degraded` and `refusing`, in sentences for an operator. */
  reasons: string[];
  /** True as soon as PostgreSQL has the tables of this version; stays true. */
  postgresReady: boolean;
  /**
   * The slot of the worker that does what one worker of an instance does for all: the first one that is ready and not
   * frozen. Undefined while there is none.
   */
  leader: number | undefined;
  /** The workers of all live hosts of the installation. */
  fleetWorkers: number;
  /** True while the leading worker of this host is the home of shared counts (`bus/home-exchange.ts`). */
  isHomeHost: boolean;
  /** Work that ended two workers: `workKey` of each, refused for now. */
  blocked: string[];
  /** The time of the instance, and the distance of this host's clock from that time. */
  clock: ClockState;
}

/** An unavailable store degrades the instance but leaves it in rotation: telemetry is still made durable. */
export function isUp({ status }: Pick<InstanceState, 'status'>): boolean {
  return status === 'ready' || status === 'degraded';
}
