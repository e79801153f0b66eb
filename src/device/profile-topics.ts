/** The topics that a device profile adds to the usual ones: `+` and `#` stand for what they do in a subscription. */

export interface ProfileTopics {
  telemetry: string | undefined;
  attributes: string | undefined;
  /** Where the device subscribes shared attributes, and is told them. */
  attributesSubscribe: string | undefined;
}

/** Of the `transportConfiguration` of a profile; undefined when it adds none. */
export function topicsOf(transport: unknown): ProfileTopics | undefined {
  if (typeof transport !== 'object' || transport === null) return undefined;
  const members = transport as Record<string, unknown>;
  if (members['type'] !== 'MQTT') return undefined;
  const topics = {
    telemetry: filterOf(members['deviceTelemetryTopic'], 'v1/devices/me/telemetry'),
    attributes: filterOf(members['deviceAttributesTopic'], 'v1/devices/me/attributes'),
    attributesSubscribe: filterOf(members['deviceAttributesSubscribeTopic'], 'v1/devices/me/attributes'),
  };
  return Object.values(topics).some((topic) => topic !== undefined) ? topics : undefined;
}

const bytesMax = 1_024;

/** Undefined when it is none, not a valid filter (a profile keeps whatever was saved), or the usual one. */
function filterOf(value: unknown, usual: string): string | undefined {
  if (typeof value !== 'string' || value === '' || value === usual || value.includes('\0')) return undefined;
  if (Buffer.byteLength(value) > bytesMax) return undefined;
  const levels = value.split('/');
  const isValid = levels.every((level, i) =>
    level.includes('#') ? level === '#' && i === levels.length - 1 : !level.includes('+') || level === '+',
  );
  return isValid ? value : undefined;
}
