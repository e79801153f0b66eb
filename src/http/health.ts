/** /livez and /readyz: what a load balancer asks. They answer for the whole instance; metrics are at `monitor.ts`. */
import type { HttpServer } from '../uws/server.ts';

export interface HealthDeps {
  server: HttpServer;
  /** State of the instance as the primary last reported it; `refusal` is the reason of this worker alone. */
  state: () => { status: string; parts: Record<string, string>; reasons: string[] };
  refusal: () => string | undefined;
}

export function healthDoor({ server, state, refusal }: HealthDeps): void {
  server.route('GET', '/livez', async () => json(200, { status: 'live' }));

  // An unavailable store degrades the service but leaves it in rotation: telemetry is still made durable.
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
