/** Packages of firmware and software: describe, upload, list, download, delete (docs/rest.md#packages). */
import { entityNotFound, type Principal, requireTenant, tenantAdmins, tenantUsers } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, notFound, tooLarge } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { placeOwners } from '../base/places.ts';
import * as Type from '../base/schema.ts';
import { findProfile } from '../device/sql/store.ts';
import { checksumAlgorithms } from '../ota/checksums.ts';
import { base64Member, readRange, type SlicedFile } from '../ota/chunks.ts';
import type { Downloads } from '../ota/downloads.ts';
import {
  hasData,
  isStored,
  type OtaPackage,
  type PackageInput,
  type PackageType,
  packageTypes,
} from '../ota/package.ts';
import { createPackage, deletePackage, savePackage, uploadFile } from '../ota/packages.ts';
import { countProfileDevices, findPackage, listPackages, type PackageFilter } from '../ota/store.ts';
import type { Postgres } from '../postgres/client.ts';
import { anything, flag, reference, text } from '../rest/body.ts';
import { entityUuid, oneOf, type PageQuery, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds, nullable, pageJson, pageShape } from '../rest/shapes.ts';
import { attachmentHeaders } from '../uws/attachment.ts';
import type { SlicedBody } from '../uws/slices.ts';
import { readMultipart } from './multipart.ts';
import { entityId, idJson } from './shapes.ts';

export interface OtaDeps {
  postgres: Postgres;
  clock: Clock;
  downloads: Downloads;
  config: { http: { apiBodyBytesMax: number } };
}

const packageBody = Type.Object({
  id: reference,
  deviceProfileId: reference,
  type: text,
  title: text,
  version: text,
  tag: text,
  usesUrl: flag,
  url: text,
  externalId: reference,
  additionalInfo: anything,
});

const packageMembers = {
  id: entityId,
  createdTime: milliseconds,
  tenantId: entityId,
  deviceProfileId: nullable(entityId),
  type: Type.Enum(packageTypes),
  title: Type.String(),
  version: Type.String(),
  tag: nullable(Type.String()),
  url: nullable(Type.String()),
  hasData: Type.Boolean(),
  fileName: nullable(Type.String()),
  contentType: nullable(Type.String()),
  checksumAlgorithm: nullable(Type.String()),
  checksum: nullable(Type.String()),
  dataSize: nullable(Type.Integer()),
  externalId: nullable(entityId),
  name: Type.String(),
  additionalInfo: anyJson,
};
const packageShape = closed(packageMembers, 'OtaPackageInfo');
const fullPackageShape = closed(
  { ...packageMembers, data: nullable(Type.String({ description: 'The file in base64' })) },
  'OtaPackage',
);

const uploadQuery = Type.Object({
  checksumAlgorithm: Type.String({ description: `One of ${checksumAlgorithms.join(', ')}` }),
  checksum: Type.Optional(Type.String({ description: 'In hex; an upload with another checksum is refused' })),
});

const uploadForm = {
  contentType: 'multipart/form-data',
  schema: Type.Object({ file: Type.String({ format: 'binary' }) }),
};

export function otaRoutes(deps: OtaDeps): Route[] {
  const { postgres, downloads } = deps;
  const fileBytesMax = deps.config.http.apiBodyBytesMax;

  async function packageOf(principal: Principal, id: string): Promise<OtaPackage> {
    const { tenantId } = requireTenant(principal);
    const found = await findPackage(postgres, tenantId, id);
    if (!found) throw entityNotFound('OtaPackage', id);
    return found;
  }

  async function profileOf(principal: Principal, profileId: string): Promise<{ tenantId: string; profileId: string }> {
    const { tenantId } = requireTenant(principal);
    const profile = await findProfile(postgres, profileId);
    if (profile?.tenantId !== tenantId) throw entityNotFound('Device profile', profileId);
    return { tenantId, profileId };
  }

  async function list(filter: PackageFilter, query: PageQuery) {
    return json(pageJson(await listPackages(postgres, filter, pageLink(query)), packageJson));
  }

  return [
    route({
      method: 'POST',
      pattern: '/api/otaPackage',
      summary: 'Describe a package whose file is uploaded next, or is at a URL',
      roles: tenantAdmins,
      body: packageBody,
      answer: packageShape,
      async handle({ principal, body }) {
        const { tenantId } = requireTenant(principal);
        const usesUrl = body.usesUrl ?? Boolean(body.url);
        const id = entityUuid(body.id);
        const input = packageInput(body);
        const saved = id
          ? await savePackage(deps, tenantId, id, input, usesUrl)
          : await createPackage(deps, tenantId, input, usesUrl);
        return json(packageJson(saved));
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/otaPackage/:otaPackageId',
      summary: 'Upload the file of a package: multipart/form-data with a part `file`',
      roles: tenantAdmins,
      query: uploadQuery,
      ownBody: { shape: uploadForm },
      answer: packageShape,
      // The file may be as large as any body; the form around the file is extra.
      bodyBytesMax: fileBytesMax + limits.otaFormBytesMax,
      async handle({ principal, params, query, request }) {
        const { tenantId } = requireTenant(principal);
        const id = params.otaPackageId;
        const algorithm = checksumAlgorithms.find((known) => known === query.checksumAlgorithm);
        if (!algorithm) throw badRequest('checksum_algorithm', 'Unknown checksum algorithm!');
        const form = readMultipart(request.body, request.header('content-type'));
        const part = form.find(({ name }) => name === 'file');
        if (!part) throw badRequest('part_missing', "Required request part 'file' is not present");
        const { bytes, fileName, contentType } = part;
        if (bytes.length > fileBytesMax) {
          throw tooLarge('body_too_large', `Payload size exceeds the limit of ${fileBytesMax} bytes`);
        }
        const { checksum = '' } = query;
        const file = { name: fileName, contentType, bytes, algorithm, checksum };
        return json(packageJson(await uploadFile(deps, tenantId, id, file)));
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/otaPackage/info/:otaPackageId',
      summary: 'A package without its file',
      roles: tenantUsers,
      answer: packageShape,
      handle: async ({ principal, params }) => json(packageJson(await packageOf(principal, params.otaPackageId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/otaPackage/:otaPackageId',
      summary: 'A package with its file in base64',
      roles: tenantAdmins,
      answer: fullPackageShape,
      async handle({ principal, params }) {
        const found = await packageOf(principal, params.otaPackageId);
        const members = packageJson(found);
        if (!isStored(found)) return json({ ...members, data: null });
        const body = owned(base64Member(downloads.pieces, found, found.dataSize, members, 'data'), principal);
        return { status: 200, contentType: 'application/json', body };
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/otaPackage/:otaPackageId/download',
      summary: 'The file of a package',
      roles: tenantUsers,
      answer: { contentType: '*/*', schema: Type.String({ format: 'binary' }) },
      otherAnswers: { 400: 'empty' },
      async handle({ principal, params }) {
        const found = await packageOf(principal, params.otaPackageId);
        // ThingsBoard's clients expect this answer for a package whose file is at a URL.
        if (found.url !== null) return { status: 400 };
        if (!isStored(found)) throw notFound(`The file of the package [${found.id}] is not uploaded yet`);
        const body = owned(await readRange(downloads.pieces, found, { start: 0, end: found.dataSize }), principal);
        const headers = attachmentHeaders(found.fileName);
        return { status: 200, contentType: found.contentType ?? 'application/octet-stream', headers, body };
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/otaPackages',
      summary: 'Packages of the tenant',
      roles: tenantUsers,
      query: pageQuery,
      answer: pageShape(packageShape),
      handle: ({ principal, query }) => list({ tenantId: requireTenant(principal).tenantId }, query),
    }),
    route({
      method: 'GET',
      pattern: '/api/otaPackages/:profileId/:otaPackageType',
      summary: 'Packages that the devices of a profile can be given',
      roles: tenantUsers,
      query: pageQuery,
      answer: pageShape(packageShape),
      async handle({ principal, params, query }) {
        const { profileId, otaPackageType: type } = params;
        return await list({ ...(await profileOf(principal, profileId)), type }, query);
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/otaPackage/:otaPackageId',
      summary: 'Delete a package that no device or profile uses',
      roles: tenantAdmins,
      async handle({ principal, params }) {
        await deletePackage(deps, requireTenant(principal).tenantId, params.otaPackageId);
        return empty;
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/devices/count/:otaPackageType/:profileId',
      summary: 'Devices of a profile that have no package of their own',
      roles: tenantAdmins,
      answer: Type.Integer(),
      async handle({ principal, params }) {
        const { tenantId, profileId } = await profileOf(principal, params.profileId);
        return json(await countProfileDevices(postgres, tenantId, profileId, params.otaPackageType));
      },
    }),
  ];
}

/** An answer in slices counts for its caller. */
function owned(body: Buffer | SlicedFile, { tenantId, customerId }: Principal): Buffer | SlicedBody {
  return Buffer.isBuffer(body) ? body : { ...body, owners: placeOwners(tenantId, customerId) };
}

function packageType(given: string | null | undefined): PackageType {
  if (!given) throw badRequest('ota_type', 'Type should be specified!');
  return oneOf('type', given, packageTypes, 'FIRMWARE');
}

function packageInput(body: Type.Static<typeof packageBody>): PackageInput {
  return {
    profileId: entityUuid(body.deviceProfileId),
    type: packageType(body.type),
    title: body.title ?? '',
    version: body.version ?? '',
    tag: body.tag || null,
    url: body.url || null,
    externalId: entityUuid(body.externalId),
    additionalInfo: body.additionalInfo ?? null,
  };
}

function packageJson(found: OtaPackage): Type.Static<typeof packageShape> {
  return {
    id: idJson('OTA_PACKAGE', found.id),
    createdTime: found.createdTime,
    tenantId: idJson('TENANT', found.tenantId),
    deviceProfileId: found.profileId ? idJson('DEVICE_PROFILE', found.profileId) : null,
    type: found.type,
    title: found.title,
    version: found.version,
    tag: found.tag,
    url: found.url,
    hasData: hasData(found),
    fileName: found.fileName,
    contentType: found.contentType,
    checksumAlgorithm: found.checksumAlgorithm,
    checksum: found.checksum,
    dataSize: found.dataSize,
    externalId: found.externalId ? idJson('OTA_PACKAGE', found.externalId) : null,
    name: found.title,
    additionalInfo: found.additionalInfo,
  };
}
