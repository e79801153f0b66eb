/** Information about this server. */
import { users } from '../auth/roles.ts';
import * as Type from '../base/schema.ts';
import { ownVersion } from '../base/version.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed } from '../rest/shapes.ts';

/** The version of ThingsBoard whose API this is. Clients use API keys only from version 4.3 on. */
export const platformVersion = '4.3.0';

const infoShape = closed(
  {
    version: Type.String({ description: 'The version of ThingsBoard whose API this is' }),
    artifact: Type.String(),
    name: Type.String(),
    type: Type.String(),
    millraceVersion: Type.String(),
  },
  'SystemInfo',
);

export function systemRoutes(): Route[] {
  const platform = { version: platformVersion, artifact: 'application', name: 'Millrace', type: 'CE' };
  const answer = { ...platform, millraceVersion: ownVersion() };
  return [
    route({
      method: 'GET',
      pattern: '/api/system/info',
      summary: 'Name and version of this server',
      roles: users,
      answer: infoShape,
      handle: async () => json(answer),
    }),
  ];
}
