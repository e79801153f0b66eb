/**
 * Telemetry and attributes that notify a device of its packages (docs/rest.md#packages). Pure functions; values are
 * never cast.
 */
import { ownValue } from '../attributes/attributes.ts';
import type { TypedValue } from '../value/typed.ts';
import { isStored, type OtaPackage, type PackageType, prefixOf } from './package.ts';

type Values = Map<string, TypedValue>;

const attributeNames = ['title', 'version', 'tag', 'size', 'state', 'ts', 'url', 'checksum', 'checksum_algorithm'];

/** Telemetry at the moment of the assignment. */
export function queuedSeries(assigned: OtaPackage, now: number): Values {
  const prefix = prefixOf[assigned.type];
  const values: Values = new Map([
    [`target_${prefix}_title`, ownValue.string(assigned.title)],
    [`target_${prefix}_version`, ownValue.string(assigned.version)],
    [`target_${prefix}_ts`, ownValue.long(now)],
    [`${prefix}_state`, ownValue.string('QUEUED')],
  ]);
  if (assigned.tag) values.set(`target_${prefix}_tag`, ownValue.string(assigned.tag));
  return values;
}

/** Telemetry once the device can read its attributes. */
export function initiatedSeries(type: PackageType): Values {
  return new Map([[`${prefixOf[type]}_state`, ownValue.string('INITIATED')]]);
}

/** Telemetry when the device cannot get its file, with the reason for an administrator. */
export function failedSeries(type: PackageType, reason: string): Values {
  const prefix = prefixOf[type];
  return new Map([
    [`${prefix}_state`, ownValue.string('FAILED')],
    [`${prefix}_error`, ownValue.string(reason)],
  ]);
}

/** Shared attributes of the assignment; other `attributeKeys` must be deleted. */
export function packageAttributes(assigned: OtaPackage): Values {
  const prefix = prefixOf[assigned.type];
  const values: Values = new Map([
    [`${prefix}_title`, ownValue.string(assigned.title)],
    [`${prefix}_version`, ownValue.string(assigned.version)],
  ]);
  if (assigned.tag) values.set(`${prefix}_tag`, ownValue.string(assigned.tag));
  if (assigned.url !== null) values.set(`${prefix}_url`, ownValue.string(assigned.url));
  if (isStored(assigned)) {
    values.set(`${prefix}_size`, ownValue.long(assigned.dataSize));
    values.set(`${prefix}_checksum_algorithm`, ownValue.string(assigned.checksumAlgorithm ?? ''));
    values.set(`${prefix}_checksum`, ownValue.string(assigned.checksum ?? ''));
  }
  return values;
}

export function attributeKeys(type: PackageType): string[] {
  return attributeNames.map((name) => `${prefixOf[type]}_${name}`);
}
