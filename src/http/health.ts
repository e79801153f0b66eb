/** Answers /livez and /readyz for load balancers, for the whole instance. Metrics are at `monitor.ts`. */
import { type InstanceState, isUp } from '../instance/messages.ts';
import type { HttpServer } from '../uws/server.ts';

export interface HealthDeps {
  server: HttpServer;
  /** State of the instance as the primary last reported it. */
  state: () => InstanceState;
  /** The reason why this worker alone refuses telemetry. */
  refusal: () => string | undefined;
}

export function healthDoor({ server, state, refusal }: HealthDeps): void {
  server.route('GET', '/livez', async () => json(200, { status: 'live' }));

  const ready = async () => {
    const { status, parts, reasons } = state();
    const refusing = refusal();
    return json(isUp({ status }) && refusing === undefined ? 200 : 503, {
      status,
      parts,
      reasons,
      ...(refusing !== undefined && { refusing }),
    });
  };
  server.route('GET', '/readyz', ready);
  server.route('GET', '/healthz', ready);
}

function json(status: number, body: unknown) {
  return { status, contentType: 'application/json', body: JSON.stringify(body) };
}
