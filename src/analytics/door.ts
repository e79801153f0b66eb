/** Serves the analytics component: the rows of its table, the page of a view link, and its health. */
import type { Auth } from '../auth/auth.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { ReportDeps } from '../report/report.ts';
import { json, register, served } from '../rest/route.ts';
import type { HttpServer } from '../uws/server.ts';
import { ReportCallers } from './caller.ts';
import { pageRoutes } from './page.ts';
import { reportRoutes } from './routes.ts';
import { UnsentReports } from './unsent-reports.ts';

interface AnalyticsDoorDeps extends ReportDeps {
  server: HttpServer;
  auth: Auth;
  metrics: Metrics;
  /** Parts of the process that do not work now. */
  away: () => string[];
}

export function analyticsDoor({ server, auth, metrics, away, ...reportDeps }: AnalyticsDoorDeps): void {
  const unsent = new UnsentReports();
  metrics.observed(
    'report_unsent_bytes',
    'Bytes of reports that their readers have not taken yet.',
    () => unsent.bytes,
  );
  const callers = new ReportCallers(auth.callers);
  const deps = { ...reportDeps, auth, unsent };
  register(server, served(reportRoutes, { callers, deps, bodyBytesMax: limits.viewBodyBytesMax }));
  pageRoutes(server);
  server.route('GET', '/livez', async () => json({ status: 'live' }));
  server.route('GET', '/readyz', async () => {
    const parts = away();
    return json({ status: parts.length === 0 ? 'ready' : 'degraded', away: parts });
  });
}
