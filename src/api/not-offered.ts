/**
 * Lists operations of ThingsBoard that Millrace does not offer and whose paths resemble a route with an id in place of
 * the last word. Without this list the last word would be read as an id and answered 400; with it the answer is 404.
 */
const tenantWords = ['asset', 'assets', 'assetInfos', 'dashboards', 'edge', 'edges', 'edgeInfos'];
const viewWords = ['entityView', 'entityViews', 'entityViewInfos'];
const userWords = ['dashboards', 'groups', 'sendActivationMail', 'settings', 'tokenAccessEnabled'];

export const notOffered: readonly string[] = [
  ...[...tenantWords, ...viewWords].map((word) => `/api/tenant/${word}`),
  ...userWords.map((word) => `/api/user/${word}`),
];
