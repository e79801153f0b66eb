/** Answers /livez and /readyz for load balancers, for the whole instance. Metrics are at `monitor.ts`. */
import { type InstanceState, isUp } from '../instance/health/state.ts';
import type { HttpServer } from '../uws/server.ts';

interface HealthDeps {
  server: HttpServer;
  /** State of the instance as the primary last reported it. */
  state: () => InstanceState;
  /** The reason why this worker alone refuses telemetry. */
  refusal: () => string | undefined;
}

export function healthDoor({ server, state, refusal }: HealthDeps): void {
  server.route('GET', '/livez', async () => json(200, { status: 'live' }));

  // The state of this worker comes first: a client that sent here would be refused.
  const ready = async () => {
    const { status: ofInstance, parts, reasons } = state();
    const refusing = refusal();
    const status = isUp({ status: ofInstance }) && refusing !== undefined ? 'refusing' : ofInstance;
    return json(isUp({ status }) ? 200 : 503, {
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
