/** The routes of the analytics component: reports, saved views, signing in, the page of a view link. */
import type { Auth } from '../auth/auth.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics.ts';
import { isUuid } from '../base/uuid.ts';
import { decodeRangeAndFilters, decodeReportRequest, decodeView } from '../report/decode-view.ts';
import { makeReport, type ReportDeps } from '../report/report.ts';
import { listViews, visibleTo } from '../report/store.ts';
import { findVisibleView, removeView, saveView } from '../report/views.ts';
import type { HttpRequest, HttpResponse, HttpServer } from '../uws/server.ts';
import { json, UnsentReports, viewJson } from './answers.ts';
import { formatOf, jsonBody, pageLinkOf, requireJson } from './body.ts';
import { callerOf, requireAdministrator } from './caller.ts';
import { pageRoutes } from './page.ts';

export interface AnalyticsDoorDeps extends ReportDeps {
  server: HttpServer;
  auth: Auth;
  metrics: Metrics;
  /** Parts of the process that do not work now. */
  away: () => string[];
}

/** Manuals of different versions name different paths. */
const prefixes = ['/apiAnalytics', '/apiTrendz'];

export function analyticsDoor(deps: AnalyticsDoorDeps): void {
  const { server, auth, metrics } = deps;
  const unsent = new UnsentReports();
  metrics.observed(
    'report_unsent_bytes',
    'Bytes of reports that their readers have not taken yet.',
    () => unsent.bytes,
  );

  const buildReport = async (request: HttpRequest): Promise<HttpResponse> => {
    const principal = await callerOf(request, auth, 'noKeys');
    requireJson(request);
    const asked = decodeReportRequest(jsonBody(request));
    const view = await findVisibleView(deps, principal, asked.viewConfigId);
    const format = formatOf(request);
    const report = await makeReport(deps, principal, view, asked, format, request.aborted);
    return unsent.answer(report, format, principal);
  };

  const preview = async (request: HttpRequest): Promise<HttpResponse> => {
    const principal = await callerOf(request, auth, 'keys');
    requireJson(request);
    const body = jsonBody(request);
    const { definition } = decodeView(body);
    // The filters of an unsaved view are its own.
    const { rangeStartTs, rangeEndTs } = decodeRangeAndFilters({ ...(body as object), filters: {} });
    const range = { rangeStartTs, rangeEndTs, filters: [] };
    const format = formatOf(request);
    const report = await makeReport(deps, principal, definition, range, format, request.aborted);
    return unsent.answer(report, format, principal);
  };

  const signIn = async (request: HttpRequest): Promise<HttpResponse> => {
    const { username, password } = (jsonBody(request) ?? {}) as { username?: unknown; password?: unknown };
    if (typeof username !== 'string' || typeof password !== 'string') {
      throw badRequest('sign_in', 'username and password must be strings.');
    }
    return json(await auth.signIn(username, password, request.remoteAddress));
  };

  const view = '/apiAnalytics/view';
  for (const prefix of prefixes) {
    server.route('POST', `${prefix}/publicApi/buildReport`, buildReport, limits.reportBodyBytesMax);
    server.route('POST', `${prefix}/publicApi/auth/login`, signIn, limits.signInBodyBytesMax);
  }
  server.route('POST', `${view}/preview`, preview, limits.viewBodyBytesMax);
  server.route(
    'POST',
    view,
    async (request) => {
      const principal = await callerOf(request, auth, 'keys');
      requireAdministrator(principal);
      requireJson(request);
      return json(viewJson(await saveView(deps, principal.tenantId, decodeView(jsonBody(request)))));
    },
    limits.viewBodyBytesMax,
  );
  server.route('GET', `${view}/:id`, async (request) => {
    const principal = await callerOf(request, auth, 'keys');
    return json(viewJson(await findVisibleView(deps, principal, idOf(request))));
  });
  server.route('DELETE', `${view}/:id`, async (request) => {
    const principal = await callerOf(request, auth, 'keys');
    requireAdministrator(principal);
    await removeView(deps, principal.tenantId, idOf(request));
    return { status: 200 };
  });
  server.route('GET', '/apiAnalytics/views', async (request) => {
    const principal = await callerOf(request, auth, 'keys');
    const { data, ...page } = await listViews(deps.postgres, visibleTo(principal), pageLinkOf(request));
    return json({ data: data.map(viewJson), ...page });
  });
  pageRoutes(server);
  server.route('GET', '/livez', async () => json({ status: 'live' }));
  server.route('GET', '/readyz', async () => {
    const away = deps.away();
    return { ...json({ status: away.length === 0 ? 'ready' : 'degraded', away }) };
  });
}

function idOf({ params }: HttpRequest): string {
  const id = params[0]!;
  if (!isUuid(id)) throw badRequest('uuid', `Invalid UUID string: ${id.slice(0, 100)}`);
  return id.toLowerCase();
}
