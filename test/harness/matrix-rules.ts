/**
 * Who may call what: a statement of its own, beside the roles that the routes declare. `matrix.test.ts` holds
 * every operation of the API document against it. An operation takes the first row that fits; one that fits none is a
 * failure.
 */

export type Role = 'system' | 'tenant' | 'customer' | 'guest';
const roles: readonly Role[] = ['system', 'tenant', 'customer', 'guest'];

/**
 * Whose the named entity is, as the caller of tenant A sees it: `self` (the user itself), `own` (of the own customer;
 * of the public customer for a guest), `other` (of another customer), `shared` (of no customer), `foreign` (of tenant
 * B), `missing` (does not exist).
 */
export type Ownership = 'self' | 'own' | 'other' | 'shared' | 'foreign' | 'missing';

/**
 * -         refused with 403, for every entity
 * yes       names no entity
 * all       every entity of the installation; a missing one is 404
 * tenant    entities of the own tenant; those of another one are 404, as missing ones are
 * own       entities of the own customer; 403 for the rest of the tenant, 404 for another tenant
 * self      the caller's own user, and what is of it; 403 for the rest of the tenant, 404 for another tenant
 * nothing   403 for entities of the own tenant, 404 for those of another one
 * admins    administrators; 403 for users of customers
 * below     users one step below: administrators of tenants for `system`, users of customers for `tenant`
 * [tenant]  a list by ids: what is not of the own tenant is left out
 * [own]     a list by ids: what is not of the own customer is left out
 * visible   as `own`, and what is of no customer; 404 for all others
 * free      devices of no customer that say so; 400 for the rest of the tenant, 404 for another tenant
 * public    the caller needs no credentials
 * token     every caller with the token of the device; 401 without one
 */
const rules = `
  operation                                           system     tenant     customer   guest

  POST   /api/auth/logout                             yes        yes        yes        yes
  POST   /api/auth/changePassword                     yes        yes        yes        -
  GET    /api/auth/user                               yes        yes        yes        yes
  *      /api/auth/**                                 public
  *      /api/noauth/**                               public
  GET    /api/system/info                             yes        yes        yes        -

  POST   /api/apiKey                                  self       tenant     self       -
  *      /api/apiKey/**                               self       tenant     self       -
  GET    /api/apiKeys/{userId}                        self       tenant     self       -

  POST   /api/user                                    yes        yes        -          -
  POST   /api/user id                                 admins     tenant     self       -
  GET    /api/user/{userId}                           admins     tenant     own        -
  GET    /api/user/{userId}/token                     below      below      -          -
  POST   /api/user/{userId}/resetPasswordLink         below      below      -          -
  *      /api/user/{userId}/**                        admins     tenant     -          -
  GET    /api/users                                   -          yes        yes        -
  GET    /api/users/list                              -          [tenant]   [own]      -
  GET    /api/customer/{customerId}/users             -          tenant     own        -

  GET    /api/tenant/{tenantId}                       all        tenant     tenant     -
  GET    /api/tenant/info/{tenantId}                  all        tenant     -          -
  GET    /api/tenant/usage/{tenantId}                 all        tenant     -          -
  GET    /api/usage                                   -          yes        -          -
  GET    /api/tenant/{tenantId}/users                 all        -          -          -
  POST   /api/tenant                                  yes        -          -          -
  POST   /api/tenant id                               all        -          -          -
  DELETE /api/tenant/{tenantId}                       all        -          -          -
  GET    /api/tenants                                 yes        -          -          -
  GET    /api/tenants/list                            [all]      -          -          -
  GET    /api/tenantInfos                             yes        -          -          -

  POST   /api/tenantProfile                           yes        -          -          -
  POST   /api/tenantProfile id                        all        -          -          -
  *      /api/tenantProfile/**                        all        -          -          -
  GET    /api/tenantProfiles                          yes        -          -          -
  GET    /api/tenantProfiles/list                     [all]      -          -          -
  GET    /api/tenantProfileInfo/default               yes        -          -          -
  GET    /api/tenantProfileInfo/{tenantProfileId}     all        -          -          -
  GET    /api/tenantProfileInfos                      yes        -          -          -

  GET    /api/customer/{customerId}                   -          tenant     own        -
  GET    /api/customer/{customerId}/shortInfo         -          tenant     own        own
  GET    /api/customer/{customerId}/title             -          tenant     own        own
  GET    /api/customer/{customerId}/devices           -          tenant     own        own
  GET    /api/customer/{customerId}/deviceInfos       -          tenant     own        own
  GET    /api/customers                               -          yes        -          -
  GET    /api/customers/list                          -          [tenant]   [own]      -
  GET    /api/tenant/customers                        -          tenant     -          -
  POST   /api/customer/device/{deviceName}/claim      -          -          free       -
  DELETE /api/customer/device/{deviceName}/claim      -          tenant     own        -
  POST   /api/customer                                -          yes        -          -
  *      /api/customer/**                             -          tenant     -          -

  GET    /api/device/types                            -          yes        yes        yes
  GET    /api/device/{deviceId}                       -          tenant     own        own
  GET    /api/device/info/{deviceId}                  -          tenant     own        own
  GET    /api/device/{deviceId}/credentials           -          tenant     own        -
  GET    /api/device/{deviceId}/diagnostics           -          tenant     own        -
  GET    /api/device/{deviceId}/completeness          -          tenant     own        -
  GET    /api/receipt/{receipt}                       -          tenant     own        -
  GET    /api/refusals                                -          yes        -          -
  GET    /api/refusals/addresses                      yes        -          -          -
  GET    /api/device-connectivity/{deviceId}          -          tenant     own        -
  GET    /api/device-connectivity/mqtts/**            public
  POST   /api/device id                               -          tenant     own        -
  POST   /api/device                                  -          yes        -          -
  POST   /api/device/bulk_import                      -          yes        -          -
  POST   /api/device-with-credentials                 -          yes        -          -
  POST   /api/devices/bulk                            -          yes        -          -
  POST   /api/device/credentials                      -          tenant     -          -
  DELETE /api/device/{deviceId}                       -          tenant     -          -
  GET    /api/devices                                 -          [tenant]   [own]      [own]
  POST   /api/devices                                 -          tenant     own        -
  GET    /api/devices/count/**                        -          tenant     -          -
  GET    /api/tenant/devices                          -          yes        -          -
  GET    /api/tenant/deviceInfos                      -          yes        -          -
  GET    /api/tenant/device                           -          tenant     -          -

  GET    /api/deviceProfileInfos                      -          yes        yes        yes
  GET    /api/deviceProfileInfos/list                 -          [tenant]   [tenant]   [tenant]
  GET    /api/deviceProfileInfo/default               -          yes        yes        yes
  GET    /api/deviceProfileInfo/{profileId}           -          tenant     tenant     tenant
  GET    /api/deviceProfile/names                     -          yes        yes        yes
  GET    /api/deviceProfile/issuers                   -          yes        -          -
  GET    /api/deviceProfile/devices/**                -          tenant     -          -
  GET    /api/deviceProfiles                          -          yes        -          -
  POST   /api/deviceProfile                           -          yes        -          -
  *      /api/deviceProfile/**                        -          tenant     -          -

  GET    /api/otaPackages                             -          yes        yes        -
  GET    /api/otaPackages/**                          -          tenant     tenant     -
  GET    /api/otaPackage/info/{otaPackageId}          -          tenant     tenant     -
  GET    /api/otaPackage/{otaPackageId}/download      -          tenant     tenant     -
  POST   /api/otaPackage                              -          yes        -          -
  *      /api/otaPackage/**                           -          tenant     -          -

  GET    /api/plugins/telemetry/DEVICE/**             -          tenant     own        own
  GET    /api/plugins/telemetry/CUSTOMER/**           -          tenant     own        nothing
  GET    /api/plugins/telemetry/USER/**               -          tenant     self       nothing
  GET    /api/plugins/telemetry/**                    -          tenant     nothing    nothing
  *      /api/plugins/telemetry/DEVICE/**             -          tenant     own        -
  *      /api/plugins/telemetry/{deviceId}/**         -          tenant     own        -
  *      /api/plugins/telemetry/USER/**               -          tenant     self       -
  *      /api/plugins/telemetry/**                    -          tenant     nothing    -

  DELETE /api/rpc/**                                  -          tenant     -          -
  *      /api/rpc/**                                  -          tenant     own        -
  *      /api/plugins/rpc/**                          -          tenant     own        -

  POST   /api/entitiesQuery/find                      -          [tenant]   [own]      [own]
  POST   /api/entitiesQuery/count                     -          yes        yes        yes
  GET    /api/relations                               -          tenant     own        own
  GET    /api/relations/info                          -          tenant     own        own
  DELETE /api/relations                               -          tenant     -          -
  GET    /api/relations/**/DEVICE/**                  -          tenant     own        own
  GET    /api/relations/**/CUSTOMER/**                -          tenant     own        nothing
  GET    /api/relations/**/USER/**                    -          tenant     own        nothing
  GET    /api/relations/**                            -          tenant     tenant     nothing
  GET    /api/relation                                -          tenant     own        own
  *      /api/relation                                -          tenant     own        -
  *      /api/v2/relation                             -          tenant     own        -

  POST   /apiAnalytics/publicApi/buildReport          -          tenant     visible    -
  POST   /apiTrendz/publicApi/buildReport             -          tenant     visible    -
  *      /apiAnalytics/publicApi/auth/**              public
  *      /apiTrendz/publicApi/auth/**                 public
  POST   /apiAnalytics/view                           -          yes        -          -
  POST   /apiAnalytics/view id                        -          tenant     -          -
  POST   /apiAnalytics/view/preview                   -          yes        yes        -
  GET    /apiAnalytics/view/{viewId}                  -          tenant     visible    -
  DELETE /apiAnalytics/view/{viewId}                  -          tenant     -          -
  GET    /apiAnalytics/views                          -          yes        yes        -

  *      /v3/api-docs/**                              public
  POST   /api/v1/provision                            public
  *      /api/v1/{deviceToken}/**                     token
`;

const words = [
  ...(['-', 'yes', 'all', 'tenant', 'own', 'self', 'nothing', 'admins', 'below'] as const),
  ...(['[all]', '[tenant]', '[own]', 'visible', 'free', 'public', 'token'] as const),
];
export type Word = (typeof words)[number];

export interface Rule {
  text: string;
  fits: (operation: string) => boolean;
  of: Record<Role, Word>;
}

export const table: readonly Rule[] = rules
  .split('\n')
  .slice(2)
  .filter((line) => line.trim() !== '')
  .map(ruleOf);

/**
 * `POST /api/device id` is the call with an id in its body: it saves, the other one creates. Rows with `**` mean both.
 */
function ruleOf(line: string): Rule {
  const [method, path, ...rest] = line.trim().split(/\s+/) as [string, string, ...string[]];
  const variant = rest[0] === 'id' ? rest.shift() : undefined;
  const given = rest.length === 1 ? roles.map(() => rest[0]!) : rest;
  if (given.length !== roles.length || !given.every((word) => words.includes(word as Word))) {
    throw new Error(`this row of the rules has no word for each role: ${line}`);
  }
  const pattern = path.replace(/[.{}]/g, '\\$&').replaceAll('/**', '(/.*)?');
  const whole = new RegExp(
    `^${method === '*' ? '[A-Z]+' : method} ${pattern}${variant ? ' id' : path.endsWith('/**') ? '( id)?' : ''}$`,
  );
  const of = Object.fromEntries(roles.map((role, n) => [role, given[n]])) as Record<Role, Word>;
  return { text: line.trim().replace(/\s+/g, ' '), fits: (operation) => whole.test(operation), of };
}

/** Returns the expected answer; 200 means every answer of success. */
export function expected(word: Word, role: Role, whose: Ownership, isAdmin: boolean): 200 | 400 | 401 | 403 | 404 {
  const inTenant = whose !== 'foreign' && whose !== 'missing';
  // A system administrator has no tenant: nothing is foreign to it.
  const isKnown = inTenant || (role === 'system' && whose === 'foreign');
  const refused = isKnown ? 403 : 404;
  switch (word) {
    case '-':
      return 403;
    case 'yes':
    case 'public':
    case '[all]':
    case '[tenant]':
    case '[own]':
      return 200;
    case 'all':
    case 'tenant':
      return isKnown ? 200 : 404;
    case 'own':
      return whose === 'own' || whose === 'self' ? 200 : refused;
    case 'visible':
      return whose === 'own' || whose === 'self' || whose === 'shared' ? 200 : 404;
    case 'self':
      return whose === 'self' ? 200 : refused;
    case 'nothing':
      return refused;
    case 'admins':
      return isKnown && isAdmin ? 200 : refused;
    case 'below':
      return isKnown && whose !== 'self' && isAdmin === (role === 'system') ? 200 : refused;
    case 'free':
      if (whose === 'shared') return 200;
      return inTenant ? 400 : 404;
    case 'token':
      return whose === 'missing' ? 401 : 200;
  }
}

/** True when the list by ids names the entity. */
export function isListed(word: Word, whose: Ownership): boolean {
  if (word === '[own]') return whose === 'own' || whose === 'self';
  return whose !== 'missing' && (word === '[all]' || whose !== 'foreign');
}
