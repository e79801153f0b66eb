/** Makes, fills and deletes packages. A file is stored piece by piece, and its checksum is computed meanwhile. */
import { entityNotFound } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Places, placeOwners } from '../base/places.ts';
import { createUuid } from '../base/uuid.ts';
import { findProfile } from '../device/sql/store.ts';
import type { Postgres } from '../postgres/client.ts';
import { type ChecksumAlgorithm, newChecksum } from './checksums.ts';
import { pieceBytes } from './chunks.ts';
import {
  checkInput,
  checkUpdate,
  cleanContentType,
  cleanFileName,
  type OtaPackage,
  type PackageInput,
} from './package.ts';
import * as store from './store.ts';

export interface PackageDeps {
  postgres: Postgres;
  clock: Clock;
}

export interface PackageFile {
  name: string;
  contentType: string;
  bytes: Buffer;
  algorithm: ChecksumAlgorithm;
  /** The checksum that the user gave; '' = none. */
  checksum: string;
}

export async function createPackage(
  { postgres, clock }: PackageDeps,
  tenantId: string,
  input: PackageInput,
  usesUrl: boolean,
): Promise<OtaPackage> {
  checkInput(input, usesUrl);
  if (input.profileId !== null) {
    const profile = await findProfile(postgres, input.profileId);
    if (profile?.tenantId !== tenantId) {
      throw badRequest('ota_profile', 'OtaPackage is referencing to non-existent device profile!');
    }
  }
  const now = clock.now();
  const created = { ...input, url: usesUrl ? input.url : null, id: createUuid(now), createdTime: now, tenantId };
  await store.insertPackage(postgres, created);
  return { ...created, fileName: null, contentType: null, checksumAlgorithm: null, checksum: null, dataSize: null };
}

export async function savePackage(
  { postgres }: PackageDeps,
  tenantId: string,
  id: string,
  input: PackageInput,
  usesUrl: boolean,
): Promise<OtaPackage> {
  return await postgres.transaction(async (queries) => {
    const stored = await store.lockPackage(queries, tenantId, id);
    if (!stored) throw entityNotFound('OtaPackage', id);
    checkInput(input, usesUrl);
    checkUpdate(stored, { ...input, url: usesUrl ? input.url : null });
    const { externalId, additionalInfo } = input;
    await store.updatePackage(queries, id, { externalId, additionalInfo });
    return { ...stored, externalId, additionalInfo };
  });
}

/** Uploads of this process. Each upload holds a connection to PostgreSQL. */
const uploads = new Places(limits.otaUploadsMax);

const uploadsFull = unavailable('ota_uploads', 'Too many uploads at once; try again.');
const uploadsShare = new Fault(
  'ota_uploads_share',
  'Your tenant has other uploads under way: send this file when one of them has ended.',
  1,
);

/** Stores the file of a package. A package takes a file once. */
export async function uploadFile(
  { postgres }: PackageDeps,
  tenantId: string,
  id: string,
  file: PackageFile,
): Promise<OtaPackage> {
  if (file.bytes.length === 0) throw badRequest('ota_data', 'OtaPackage data should be specified!');
  const owners = placeOwners(tenantId, null);
  const place = uploads.take(owners);
  if (place !== 'taken') throw place === 'full' ? uploadsFull : uploadsShare;
  try {
    return await postgres.transaction(async (queries) => {
      const stored = await store.lockPackage(queries, tenantId, id);
      if (!stored) throw entityNotFound('OtaPackage', id);
      if (stored.dataSize !== null) throw badRequest('ota_update', 'Updating otaPackage data is prohibited!');
      if (stored.url !== null) throw badRequest('ota_url', 'OtaPackage has a URL; it takes no data!');
      const sum = newChecksum(file.algorithm);
      for (let at = 0, number = 0; at < file.bytes.length; at += pieceBytes, number += 1) {
        const piece = file.bytes.subarray(at, at + pieceBytes);
        sum.update(piece);
        await store.insertPiece(queries, id, number, piece);
      }
      const checksum = sum.hex();
      if (file.checksum !== '' && file.checksum.toLowerCase() !== checksum) {
        throw badRequest('ota_checksum', 'Wrong otaPackage file!');
      }
      const complete = {
        fileName: cleanFileName(file.name),
        contentType: cleanContentType(file.contentType),
        checksumAlgorithm: file.algorithm,
        checksum,
        dataSize: file.bytes.length,
      };
      await store.completePackage(queries, id, complete);
      return { ...stored, ...complete };
    });
  } finally {
    uploads.release(owners);
  }
}

export async function deletePackage({ postgres }: PackageDeps, tenantId: string, id: string): Promise<void> {
  if (!(await store.deletePackageRow(postgres, tenantId, id))) throw entityNotFound('OtaPackage', id);
}
