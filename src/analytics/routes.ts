/**
 * The table of the analytics component: reports, saved views, sign-in. It is a constant, because workers make the API
 * document from it without serving its routes; `door.ts` passes the collaborators to each handler.
 */
import type { Auth } from '../auth/auth.ts';
import { requireTenant, tenantAdmins, tenantUsers } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { decodeRangeAndFilters, decodeReportRequest, decodeView } from '../report/decode-view.ts';
import type { ReportFormat } from '../report/encode.ts';
import { makeReport, type ReportDeps } from '../report/report.ts';
import { listViews, visibleTo } from '../report/store.ts';
import { findVisibleView, removeView, saveView } from '../report/views.ts';
import { namedJson, parseJson } from '../rest/body.ts';
import type { TaggedRoutes } from '../rest/openapi.ts';
import { pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, publicRoute, type Route, route } from '../rest/route.ts';
import { errorShape, pageJson, pageShape, tokenPairShape } from '../rest/shapes.ts';
import type { HttpRequest } from '../uws/request.ts';
import { previewBody, reportBody, reportShape, viewBody, viewJson, viewShape } from './shapes.ts';
import type { UnsentReports } from './unsent-reports.ts';

interface ReportRouteDeps extends ReportDeps {
  auth: Auth;
  unsent: UnsentReports;
}

/** Manuals of different versions name different paths. */
const prefixes = ['/apiAnalytics', '/apiTrendz'] as const;
const view = '/apiAnalytics/view';

/** The status that the report API documents. */
const unknownCaller = 403;
const viewsBodyBytesMax = limits.viewBodyBytesMax;
const answersReport = {
  description: '`Accept: text/csv` asks for CSV.',
  answer: reportShape,
  answerHeaders: {
    'X-Report-Rows': 'Rows of the answer',
    'X-Report-Truncated': 'What ended the answer before its last row: `rows` or `bytes`',
  },
  otherAnswers: { 200: { contentType: 'text/csv', schema: Type.String() }, 504: errorShape },
};
const signInBody = Type.Object({ username: Type.String(), password: Type.String() });

export const reportRoutes: readonly Route<ReportRouteDeps>[] = [
  ...prefixes.flatMap((prefix) => [
    route({
      method: 'POST',
      pattern: `${prefix}/publicApi/buildReport`,
      summary: 'Make a report of a saved view',
      roles: tenantUsers,
      apiKeys: false,
      unknownCaller,
      ownBody: { shape: reportBody, jsonOnly: true },
      ...answersReport,
      bodyBytesMax: limits.reportBodyBytesMax,
      async handle({ request, principal: caller }, deps: ReportRouteDeps) {
        const principal = requireTenant(caller);
        const asked = decodeReportRequest(namedJson(request));
        const findView = () => findVisibleView(deps, principal, asked.viewConfigId);
        const format = formatOf(request);
        const report = await makeReport(deps, principal, findView, asked, format, request.aborted);
        return deps.unsent.answer(report, format, principal);
      },
    }),
    publicRoute({
      method: 'POST',
      pattern: `${prefix}/publicApi/auth/login`,
      summary: 'Sign in with user name and password, as at `/api/auth/login`',
      ownBody: { shape: signInBody },
      answer: tokenPairShape,
      otherAnswers: { 401: errorShape },
      bodyBytesMax: limits.signInBodyBytesMax,
      async handle({ request }, { auth }: ReportRouteDeps) {
        const { username, password } = (parseJson(request.body) ?? {}) as { username?: unknown; password?: unknown };
        if (typeof username !== 'string' || typeof password !== 'string') {
          throw badRequest('sign_in', 'username and password must be strings.');
        }
        return json(await auth.signIn.byPassword(username, password, request.remoteAddress));
      },
    }),
  ]),
  route({
    method: 'POST',
    pattern: `${view}/preview`,
    summary: 'Make a report of a view that is not saved',
    roles: tenantUsers,
    unknownCaller,
    ownBody: { shape: previewBody, jsonOnly: true },
    ...answersReport,
    bodyBytesMax: viewsBodyBytesMax,
    async handle({ request, principal: caller }, deps: ReportRouteDeps) {
      const principal = requireTenant(caller);
      const body = namedJson(request);
      const { definition } = decodeView(body);
      // The filters of an unsaved view are its own.
      const { rangeStartTs, rangeEndTs } = decodeRangeAndFilters({ ...(body as object), filters: {} });
      const range = { rangeStartTs, rangeEndTs, filters: [] };
      const format = formatOf(request);
      const findView = async () => definition;
      const report = await makeReport(deps, principal, findView, range, format, request.aborted);
      return deps.unsent.answer(report, format, principal);
    },
  }),
  route({
    method: 'POST',
    pattern: view,
    summary: 'Save a view; with an id, replace that view',
    roles: tenantAdmins,
    unknownCaller,
    ownBody: { shape: viewBody, jsonOnly: true },
    answer: viewShape,
    bodyBytesMax: viewsBodyBytesMax,
    async handle({ request, principal }, deps: ReportRouteDeps) {
      const { tenantId } = requireTenant(principal);
      return json(viewJson(await saveView(deps, tenantId, decodeView(namedJson(request)))));
    },
  }),
  route({
    method: 'GET',
    pattern: `${view}/:viewId`,
    summary: 'A saved view',
    roles: tenantUsers,
    unknownCaller,
    answer: viewShape,
    async handle({ params, principal }, deps: ReportRouteDeps) {
      return json(viewJson(await findVisibleView(deps, requireTenant(principal), params.viewId)));
    },
  }),
  route({
    method: 'DELETE',
    pattern: `${view}/:viewId`,
    summary: 'Delete a saved view',
    roles: tenantAdmins,
    unknownCaller,
    async handle({ params, principal }, deps: ReportRouteDeps) {
      await removeView(deps, requireTenant(principal).tenantId, params.viewId);
      return empty;
    },
  }),
  route({
    method: 'GET',
    pattern: '/apiAnalytics/views',
    summary: 'Saved views, by pages',
    roles: tenantUsers,
    unknownCaller,
    query: pageQuery,
    answer: pageShape(viewShape),
    async handle({ query, principal }, { postgres }: ReportRouteDeps) {
      const page = await listViews(postgres, visibleTo(requireTenant(principal)), pageLink(query));
      return json(pageJson(page, viewJson));
    },
  }),
];

/** Returns the part of the API document about reports. `port`: the port of the analytics process. */
export function reportsAt(port: number): TaggedRoutes {
  const description =
    'Reports and their views, on a port of their own. The token may also be the query parameter or the header `jwt`.';
  return { tag: 'reports', description, routes: reportRoutes, port };
}

function formatOf(request: HttpRequest): ReportFormat {
  return /\btext\/csv\b/i.test(request.header('accept')) ? 'csv' : 'json';
}
