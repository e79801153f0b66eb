/** Everything that a start refuses in its settings, before it touches a file: used by the primary and by commands. */
import { parseRateLimits } from '../../auth/rate-limits.ts';
import { parseRequestRates } from '../../auth/request-limits.ts';
import { parseSigningKey } from '../../auth/signing-key.ts';
import { Proxies } from '../../auth/transport.ts';
import { StartError } from '../../base/errors.ts';
import type { Config } from '../../base/settings/config.ts';
import { checkLimits, checkSettings } from '../../base/settings/limit-relations.ts';
import { describeUnknown, type UnknownName } from '../../base/settings/setting-names.ts';
import { readRedisAddress } from '../../bus/redis-address.ts';
import { readRules } from '../../rules/file.ts';
import type { RuleText } from '../../rules/table.ts';
import { checkTls } from './certificate-check.ts';

/** Returns the rules of the settings; throws StartError with the first fault. */
export function checkConfig(config: Config): RuleText[] {
  checkLimits();
  checkSettings(config);
  parseRateLimits(config.rateLimits);
  parseRequestRates(config.rateLimits.rest);
  Proxies.of(config);
  if (config.auth.signingKey !== '') parseSigningKey(config.auth.signingKey);
  checkTls(config.ssl, 'SSL');
  if (config.redis.url !== '') readRedisAddress(config.redis);
  if (config.mqtt.enabled) checkTls(config.mqtt.ssl, 'MQTT_SSL');
  return readRules(config.rules.file);
}

/**
 * Returns a warning for each name that is probably misspelt. With `strict`, throws a StartError that has all warnings.
 */
export function checkNames({ strict }: Config, unknown: UnknownName[]): string[] {
  const warnings = unknown.map(describeUnknown);
  if (!strict || warnings.length === 0) return warnings;
  throw new StartError(`${warnings.join(' ')} MILLRACE_STRICT=true refuses unknown names: correct or remove them.`);
}
