/** Groups of routes for the metric of answer times: a histogram of each route would be thousands of lines. */

/** The first match counts. */
const groups: readonly [group: string, pattern: RegExp][] = [
  ['device_telemetry', /^\/api\/v1\/:\w+\/telemetry/],
  ['device_attributes', /^\/api\/v1\/:\w+\/attributes/],
  ['device_rpc', /^\/api\/v1\/:\w+\/rpc/],
  ['device_other', /^\/api\/v1\//],
  ['rest_telemetry', /^\/api\/plugins\/telemetry\//],
  ['rest_rpc', /^\/api\/(plugins\/)?rpc\//],
  ['rest_sign_in', /^\/api\/(auth|noauth)\//],
  ['rest', /^\/api\//],
  ['reports', /^\/apiAnalytics/],
];

export function groupOfRoute(pattern: string): string {
  return groups.find(([, each]) => each.test(pattern))?.[0] ?? 'pages';
}
