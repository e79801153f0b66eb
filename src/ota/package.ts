/** Packages of firmware and software: the types, and the rules that need no store. */
import { badRequest } from '../base/errors.ts';
import { checkDocument, checkText } from '../device/model/device.ts';
import type { ChecksumAlgorithm } from './checksums.ts';

export const packageTypes = ['FIRMWARE', 'SOFTWARE'] as const;
export type PackageType = (typeof packageTypes)[number];

export interface OtaPackage {
  id: string;
  createdTime: number;
  tenantId: string;
  /** Null: for devices of every profile. */
  profileId: string | null;
  type: PackageType;
  title: string;
  version: string;
  tag: string | null;
  /** The address of a file that is stored elsewhere. */
  url: string | null;
  fileName: string | null;
  contentType: string | null;
  checksumAlgorithm: ChecksumAlgorithm | null;
  checksum: string | null;
  /** Null until the file is uploaded, and with a URL. */
  dataSize: number | null;
  externalId: string | null;
  additionalInfo: unknown;
}

/** A package whose file is stored here. */
export interface StoredPackage extends OtaPackage {
  fileName: string;
  dataSize: number;
}

/** A package as a user describes it, before its file is uploaded. */
export interface PackageInput {
  profileId: string | null;
  type: PackageType;
  title: string;
  version: string;
  tag: string | null;
  url: string | null;
  externalId: string | null;
  additionalInfo: unknown;
}

/** The word for a package type in messages. */
export const nounOf = { FIRMWARE: 'firmware', SOFTWARE: 'software' } as const satisfies Record<PackageType, string>;
/** The prefix of a package's attributes and series. */
export const prefixOf = { FIRMWARE: 'fw', SOFTWARE: 'sw' } as const satisfies Record<PackageType, string>;

const fileNameCharsMax = 255;
export const defaultContentType = 'application/octet-stream';

export function isStored(stored: OtaPackage): stored is StoredPackage {
  return stored.dataSize !== null;
}

/** True when a device can download the package: a file here, or a URL. */
export function hasData(stored: OtaPackage): boolean {
  return isStored(stored) || stored.url !== null;
}

export function checkInput(input: PackageInput, usesUrl: boolean): void {
  if (input.title.trim() === '') throw badRequest('ota_title', 'OtaPackage title should be specified!');
  if (input.version.trim() === '') throw badRequest('ota_version', 'OtaPackage version should be specified!');
  if (usesUrl && !input.url?.trim()) throw badRequest('ota_url', 'Ota package URL should be specified!');
  for (const field of ['title', 'version', 'tag', 'url'] as const) {
    if (input[field]) checkText(field, input[field]);
  }
  checkDocument('additionalInfo', input.additionalInfo);
}

/** Devices have used the properties of a stored package, so only its descriptions may change. */
export function checkUpdate(stored: OtaPackage, input: PackageInput): void {
  const fixed: [string, boolean][] = [
    ['type', stored.type === input.type],
    ['title', stored.title === input.title],
    ['version', stored.version === input.version],
    ['tag', stored.tag === input.tag],
    ['deviceProfile', stored.profileId === input.profileId],
    ['url', stored.url === input.url],
  ];
  for (const [name, same] of fixed) {
    if (!same) throw badRequest('ota_update', `Updating otaPackage ${name} is prohibited!`);
  }
}

/** Returns the last part of the path that a client sent, without characters that a header cannot carry; never empty. */
export function cleanFileName(name: string): string {
  const last = name.slice(Math.max(name.lastIndexOf('/'), name.lastIndexOf('\\')) + 1);
  // Removes control characters and unpaired surrogates, which have no UTF-8 form.
  const visible = last.replace(/\p{Cc}|\p{Cs}|[\u2028\u2029]/gu, '').trim();
  const short = [...visible].slice(0, fileNameCharsMax).join('');
  return short === '' || short === '.' || short === '..' ? 'file' : short;
}

/** Returns a media type that a header can carry; any other string becomes the type of plain bytes. */
export function cleanContentType(text: string): string {
  const isMediaType = /^[\w!#$&^.+-]{1,100}\/[\w!#$&^.+-]{1,100}(\s*;\s*[\w-]{1,50}="?[\w.+-]{1,70}"?){0,4}$/.test(
    text,
  );
  return isMediaType ? text : defaultContentType;
}
