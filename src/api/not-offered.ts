/**
 * Operations of the platform that Millrace does not offer and whose paths resemble a route with an id in place of the
 * last word: they are unknown paths (404), and no ids that are malformed (400).
 */
const tenantWords = ['asset', 'assets', 'assetInfos', 'dashboards', 'edge', 'edges', 'edgeInfos'];
const viewWords = ['entityView', 'entityViews', 'entityViewInfos'];
const userWords = ['dashboards', 'groups', 'sendActivationMail', 'settings', 'tokenAccessEnabled'];

export const notOffered: readonly string[] = [
  ...[...tenantWords, ...viewWords].map((word) => `/api/tenant/${word}`),
  ...userWords.map((word) => `/api/user/${word}`),
];
