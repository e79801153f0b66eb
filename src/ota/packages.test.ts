import { expect, test } from 'vitest';
import { type PackageDeps, type PackageFile, uploadFile } from './packages.ts';

test('a tenant leaves a place for the upload of another tenant', async () => {
  const ends: (() => void)[] = [];
  const transaction = () => new Promise<void>((resolve) => ends.push(resolve));
  const deps = { postgres: { transaction } } as unknown as PackageDeps;
  const upload = (tenantId: string) => uploadFile(deps, tenantId, 'id', { bytes: Buffer.alloc(1) } as PackageFile);
  const own = [upload('a'), upload('a')];
  await expect(upload('a')).rejects.toMatchObject({ status: 429, reason: 'ota_uploads_share' });
  const other = upload('b');
  await expect(upload('c')).rejects.toMatchObject({ status: 503, reason: 'ota_uploads' });
  for (const end of ends) end();
  await Promise.all([...own, other]);
  const again = upload('a');
  ends.at(-1)!();
  await again;
});
