/** /livez and /readyz: what a load balancer asks. They answer for the whole instance; metrics are at `monitor.ts`. */
import type { HttpServer } from '../uws/server.ts';

export interface HealthParts {
  server: HttpServer;
  /** State of the instance as the primary last told it; `refusal` is this worker's own. */
  state: () => { status: string; parts: Record<string, string>; reasons: string[] };
  refusal: () => string | undefined;
}

export function healthDoor({ server, state, refusal }: HealthParts): void {
  server.route('GET', '/livez', async () => json(200, { status: 'live' }));

  // Stores that are away degrade the service, they do not take it out of rotation: telemetry is still made durable.
  const ready = async () => {
    const { status, parts, reasons } = state();
    const refusing = refusal();
    const up = (status === 'ready' || status === 'degraded') && refusing === undefined;
    return json(up ? 200 : 503, { status, parts, reasons, ...(refusing !== undefined && { refusing }) });
  };
  server.route('GET', '/readyz', ready);
  server.route('GET', '/healthz', ready);
}

function json(status: number, body: unknown) {
  return { status, contentType: 'application/json', body: JSON.stringify(body) };
}
