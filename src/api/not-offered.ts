/**
 * Lists operations of ThingsBoard that Millrace does not offer and whose paths resemble a route with an id in place of
 * the last word. Without this list the last word would be read as an id and answered 400; with it the answer is 404.
 */
const tenantWords = [
  'agentInfos',
  'agents',
  'asset',
  'assets',
  'assetInfos',
  'dashboards',
  'edge',
  'edges',
  'edgeInfos',
];
const viewWords = ['entityView', 'entityViews', 'entityViewInfos'];
const userWords = [
  'dashboards',
  'groups',
  'lastVisitedDashboards',
  'sendActivationMail',
  'settings',
  'tokenAccessEnabled',
];
/** Entities that a user may see, in the professional edition. */
const seenWords = ['assets', 'customers', 'devices', 'edges', 'entityViews', 'users'];

export const notOffered: readonly string[] = [
  '/api/customer/users',
  ...[...tenantWords, ...viewWords].map((word) => `/api/tenant/${word}`),
  ...[...userWords, ...seenWords].map((word) => `/api/user/${word}`),
];
