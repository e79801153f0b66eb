import { randomUUID, X509Certificate } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CertificateMaker, type KeyPair } from '../../test/harness/certificates.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { noLimits } from '../admin/entity-limits.ts';
import { createProfile } from '../admin/profiles.ts';
import { insertTenant } from '../admin/store.ts';
import type { WrongTries } from '../auth/wrong-tries.ts';
import { systemClock as clock } from '../base/clock.ts';
import { createLog } from '../base/log.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { CertificateProvisioner, clientCertificate, nameIn } from './certificate-provision.ts';

describe('the name of a device in its common name', () => {
  const f = (text: string, pattern: string, expected: string | undefined) =>
    expect(nameIn(text, pattern), `${text} ${pattern}`).toBe(expected);

  it('is the first group that took part, else what the pattern matched', () => {
    f('pump-7.fleet.example', '(.*)\\.fleet\\.example', 'pump-7');
    f('pump-7.fleet.example', 'pump-\\d+', 'pump-7');
    f('pump-7', '(valve-.*)|(pump-.*)', 'pump-7');
    f('  pump-7  ', '.*', 'pump-7');
  });

  it('is none when the pattern finds nothing, or is no pattern', () => {
    f('pump-7', 'valve-.*', undefined);
    f('pump-7', '(', undefined);
    f('pump-7', '( *)', undefined);
  });

  it('is none when the search takes too long', () => {
    const startedAt = performance.now();
    f(`${'a'.repeat(200)}!`, '^(a+)+$', undefined);
    expect(performance.now() - startedAt).toBeLessThan(20_000);
  });
});

describe('profiles from before proofs were asked for', () => {
  let server: TestPostgres;
  let maker: CertificateMaker;

  beforeAll(async () => {
    server = await startTestPostgres();
    maker = new CertificateMaker();
  }, 60_000);
  afterAll(async () => {
    maker.remove();
    await server.stop();
  }, 60_000);

  function depsOf() {
    const { postgres } = server;
    const changes = { publish: () => {} } as unknown as CredentialChanges;
    const wrongKeys = { find: (_: string, find: () => unknown) => find() } as unknown as WrongTries;
    return { postgres, changes, clock, limitsOf: () => noLimits, wrongKeys, log: createLog('fatal', 'test') };
  }

  /** Makes a profile of a new tenant. */
  async function save(issuer: KeyPair, state: number): Promise<string> {
    const parts = depsOf();
    const tenantId = createUuid(clock.now());
    await insertTenant(parts.postgres, { id: tenantId, createdTime: clock.now(), title: `tenant ${tenantId}` });
    const type = 'X509_CERTIFICATE_CHAIN';
    const { id } = await createProfile(parts, tenantId, {
      ...{ name: 'chain', transportType: 'DEFAULT', provisionType: type },
      data: {
        provisionConfiguration: {
          ...{ type, provisionDeviceSecret: issuer.cert, certificateRegExPattern: '(.*)' },
          allowCreateNewDevicesByX509Certificate: true,
        },
      },
    });
    await parts.postgres.query('update device_profile set issuer_state = $2, issuer_subject = null where id = $1', [
      id,
      state,
    ]);
    return id;
  }

  /** Returns the profile of the device that signs in with the certificate, or the reason of the refusal. */
  async function shown(leaf: KeyPair, ...issuers: KeyPair[]): Promise<string> {
    const [first, ...others] = [leaf, ...issuers].map(({ cert }) => new X509Certificate(cert));
    const certificates = new CertificateProvisioner(depsOf());
    const outcome = await certificates.provision(clientCertificate(first!, others), '127.0.0.1');
    if (outcome !== 'made') return outcome;
    const name = nameIn(first!.subject, 'CN=(.*)');
    const [row] = await server.postgres.query<{ id: string }>(
      'select device_profile_id as id from device where name = $1',
      [name],
    );
    return row!.id;
  }

  it('answer as long as those of no other tenant do, and give way to a proven one', async () => {
    const [earlier, unproven, proven] = [1, 0, 2];
    const root = maker.make(`root ${randomUUID()}`, { isIssuer: true });
    const middle = maker.make(`middle ${randomUUID()}`, { isIssuer: true, issuer: root });
    const next = () => maker.make(`pump ${randomUUID()}`, { issuer: middle });
    const first = await save(root, earlier);
    expect(await shown(next(), middle)).toBe(first);
    await save(middle, unproven);
    expect(await shown(next(), middle)).toBe(first);
    const second = await save(middle, earlier);
    expect(await shown(next(), middle)).toBe('unknown');
    await server.postgres.query('delete from device_profile where id = $1', [second]);
    expect(await shown(next(), middle)).toBe(first);
    const third = await save(root, proven);
    expect(await shown(next(), middle)).toBe(third);
  });

  it('of more than a thousand others block no tenant', async () => {
    const other = maker.make(`other ${randomUUID()}`, { isIssuer: true });
    const id = await save(other, 1);
    await server.postgres.query(
      `insert into device_profile (id, created_time, tenant_id, name, provision_type, provision_device_key, profile_data, issuer_state)
       select gen_random_uuid(), 0, tenant_id, 'junk ' || n, provision_type, 'junk ' || n, '{"provisionConfiguration":{}}', 1
         from device_profile, generate_series(1, 1200) as n where id = $1`,
      [id],
    );
    const issuer = maker.make(`late ${randomUUID()}`, { isIssuer: true });
    const late = await save(issuer, 1);
    expect(await shown(maker.make(`pump ${randomUUID()}`, { issuer }))).toBe(late);
  });
});
