/** Signing in with a client certificate over TLS, and provisioning by its issuer (docs/mqtt.md#certificates). */
import { randomUUID, sign, X509Certificate } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CertificateMaker, type KeyPair } from '../../harness/certificates.ts';
import { codeOf, type Level, type Login, MqttClient } from '../../harness/mqtt-client.ts';
import { telemetry } from '../../harness/mqtt-device.ts';
import { newTenant, ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { mqttsEngine, newDevice, sharedEngine } from '../../harness/shared-engine.ts';

let maker: CertificateMaker;
beforeAll(() => {
  maker = new CertificateMaker();
});
afterAll(() => maker?.remove());

const refused = 0x87;

/** Returns the code of CONNACK. `chain`: the certificates that the client sends beside its own. */
async function signIn(
  { cert, key }: KeyPair,
  { chain = [], level = 5, ...login }: { chain?: KeyPair[]; level?: Level } & Login = {},
): Promise<number> {
  const { port, ca } = mqttsEngine();
  const sent = [cert, ...chain.map((each) => each.cert)].join('\n');
  const client = await MqttClient.open({ port, level, tls: { ca, cert: sent, key } });
  try {
    const code = codeOf(await client.connect(login));
    if (code === 0 && level === 5) expect((await client.publish(telemetry, '{"a":1}')).reasonCode).toBe(0);
    if (code !== 0) await client.closed();
    return code;
  } finally {
    client.cut();
  }
}

/** Creates a device that signs in with this certificate. */
async function register({ cert }: KeyPair): Promise<string> {
  const { id } = await newDevice();
  const credentials = await ok('GET', `/api/device/${id}/credentials`);
  await ok('POST', '/api/device/credentials', {
    ...credentials,
    credentialsType: 'X509_CERTIFICATE',
    credentialsValue: cert,
  });
  return id;
}

interface ChainSettings {
  pattern?: string;
  mayCreate?: boolean;
  proven?: boolean;
  admin?: string;
}

/** Proven unless `proven` is false; of the tenant whose `admin` is given. */
async function newChainProfile(
  issuer: KeyPair,
  { pattern = '(.*)', mayCreate = true, proven = true, admin }: ChainSettings = {},
) {
  const type = 'X509_CERTIFICATE_CHAIN';
  const profile = await ok(
    'POST',
    '/api/deviceProfile',
    {
      name: `chain-${randomUUID()}`,
      provisionType: type,
      profileData: {
        provisionConfiguration: {
          type,
          provisionDeviceSecret: issuer.cert,
          certificateRegExPattern: pattern,
          allowCreateNewDevicesByX509Certificate: mayCreate,
        },
      },
    },
    admin,
  );
  const profileId = profile.id.id as string;
  if (proven) expect(await prove(profileId, issuer, admin)).toMatchObject({ profileId, state: 'PROVEN' });
  return profileId;
}

async function nonceOf(profileId: string, admin?: string): Promise<{ state: string; nonce: string }> {
  for (let page = 0; ; page += 1) {
    const path = `/api/deviceProfile/issuers?pageSize=100&page=${page}`;
    const { data, hasNext } = await ok('GET', path, undefined, admin);
    const issuer = data.find((each: { profileId: string }) => each.profileId === profileId);
    if (issuer || !hasNext) return issuer;
  }
}

const signatureOf = (text: string, { key }: KeyPair) => sign('sha256', Buffer.from(text), key).toString('base64');

async function prove(profileId: string, issuer: KeyPair, admin?: string) {
  const { nonce } = await nonceOf(profileId, admin);
  return await ok(
    'POST',
    `/api/deviceProfile/${profileId}/issuerProof`,
    { signature: signatureOf(nonce, issuer) },
    admin,
  );
}

const uniqueName = () => `unit-${randomUUID().slice(0, 8)}`;
const deviceNamed = (name: string) => ok('GET', `/api/tenant/devices?deviceName=${encodeURIComponent(name)}`);
const newIssuer = () => maker.make(`issuer ${randomUUID()}`, { isIssuer: true });

test('a registered certificate is accepted with any names, and stays registered', async () => {
  const pair = maker.make('a device');
  await register(pair);
  expect(await signIn(pair)).toBe(0);
  expect(await signIn(pair, { level: 4, username: 'anything', password: 'anything' })).toBe(0);
});

test('an unregistered certificate is refused, even with a valid token', async () => {
  const { token } = await newDevice();
  const pair = maker.make('a stranger');
  expect(await signIn(pair)).toBe(refused);
  expect(await signIn(pair, { token })).toBe(refused);
  expect(await signIn(pair, { level: 4 })).toBe(5);
});

test('a registered certificate that expired, or is not valid yet, is refused', async () => {
  for (const validity of [
    { fromDays: -3, toDays: -1 },
    { fromDays: 1, toDays: 2 },
  ]) {
    const pair = maker.make('out of date', validity);
    await register(pair);
    expect(await signIn(pair)).toBe(refused);
  }
});

test('a token over TLS needs no certificate', async () => {
  const { port, ca } = mqttsEngine();
  const { token } = await newDevice();
  const client = await MqttClient.open({ port, tls: { ca } });
  expect(codeOf(await client.connect({ token }))).toBe(0);
  client.cut();
});

test('a client with a certificate of an issuer in a profile becomes a device, by its common name', async () => {
  const issuer = newIssuer();
  const profileId = await newChainProfile(issuer, { pattern: '(.*)\\.fleet\\.example' });
  const name = uniqueName();
  const leaf = maker.make(`${name}.fleet.example`, { issuer });
  expect(await signIn(leaf, { chain: [issuer] })).toBe(0);
  expect(await deviceNamed(name)).toMatchObject({ deviceProfileId: { id: profileId } });
  expect(await signIn(leaf)).toBe(0);
  const other = maker.make(`${name}-2.fleet.example`, { issuer });
  expect(await signIn(other)).toBe(0);
  expect(await deviceNamed(`${name}-2`)).toMatchObject({ deviceProfileId: { id: profileId } });
});

test('a chain of several links is followed up to the one in the profile', async () => {
  const root = newIssuer();
  const middle = maker.make(`middle ${randomUUID()}`, { issuer: root, isIssuer: true });
  await newChainProfile(root);
  const name = uniqueName();
  const leaf = maker.make(name, { issuer: middle });
  expect(await signIn(leaf, { chain: [middle, root] })).toBe(0);
  expect((await deviceNamed(name)).name).toBe(name);
});

test('a certificate that only names the issuer, or was signed by none, makes nothing', async () => {
  const issuer = newIssuer();
  await newChainProfile(issuer);
  expect(await signIn(maker.make(uniqueName(), { issuer }))).toBe(0);
  const commonName = new X509Certificate(issuer.cert).subject.slice('CN='.length);
  const forger = maker.make(commonName, { isIssuer: true });
  const name = uniqueName();
  expect(await signIn(maker.make(name, { issuer: forger }), { chain: [issuer] })).toBe(refused);
  expect(await signIn(maker.make(name), { chain: [issuer] })).toBe(refused);
  // A device's own certificate signs nothing.
  const leaf = maker.make(uniqueName(), { issuer });
  expect(await signIn(maker.make(name, { issuer: leaf }), { chain: [leaf, issuer] })).toBe(refused);
  expect((await sharedEngine().send('GET', `/api/tenant/devices?deviceName=${name}`)).status).toBe(404);
});

test('a new certificate of a device replaces the old one; a profile that may not create refuses others', async () => {
  const issuer = newIssuer();
  const profileId = await newChainProfile(issuer, { mayCreate: false });
  const name = uniqueName();
  await ok('POST', '/api/device', { name, deviceProfileId: { id: profileId, entityType: 'DEVICE_PROFILE' } });
  const [first, second] = [maker.make(name, { issuer }), maker.make(name, { issuer })];
  expect(await signIn(first)).toBe(0);
  expect(await signIn(second)).toBe(0);
  expect(await signIn(maker.make(uniqueName(), { issuer }))).toBe(refused);
});

test('a profile whose pattern is not a regular expression is refused', async () => {
  const type = 'X509_CERTIFICATE_CHAIN';
  const provisionConfiguration = { type, provisionDeviceSecret: newIssuer().cert, certificateRegExPattern: '(' };
  const profile = { name: `chain-${randomUUID()}`, provisionType: type, profileData: { provisionConfiguration } };
  expect(await fault('POST', '/api/deviceProfile', profile)).toMatch(/^400\/31 certificateRegExPattern/);
});

test('a name that is no name, and a device of another profile, are refused', async () => {
  const issuer = newIssuer();
  await newChainProfile(issuer, { pattern: '^unit-.*' });
  expect(await signIn(maker.make(uniqueName(), { issuer }))).toBe(0);
  expect(await signIn(maker.make('nameless', { issuer }))).toBe(refused);
  const taken = uniqueName();
  await sharedEngine().createDevice(taken);
  expect(await signIn(maker.make(taken, { issuer }))).toBe(refused);
});

test('a profile answers for an issuer only when the key of that issuer has signed the nonce of the profile', async () => {
  const issuer = newIssuer();
  const profileId = await newChainProfile(issuer, { proven: false });
  const leaf = maker.make(uniqueName(), { issuer });
  expect(await signIn(leaf)).toBe(refused);
  const path = `/api/deviceProfile/${profileId}/issuerProof`;
  const { nonce, state } = await nonceOf(profileId);
  expect(state).toBe('UNPROVEN');
  for (const signature of [signatureOf(nonce, newIssuer()), signatureOf(`${nonce} `, issuer), 'none', '!']) {
    expect(await fault('POST', path, { signature })).toMatch(/^400\/31 The signature does not match "millrace-/);
  }
  expect(await signIn(leaf)).toBe(refused);
  await prove(profileId, issuer);
  expect(await signIn(leaf)).toBe(0);
  // After a change of the certificate the profile has to be proven again; after a change of its name it has not.
  const profile = await ok('GET', `/api/deviceProfile/${profileId}`);
  const renamed = await ok('POST', '/api/deviceProfile', { ...profile, name: `chain-${randomUUID()}` });
  expect(await nonceOf(profileId)).toMatchObject({ state: 'PROVEN', nonce });
  renamed.profileData.provisionConfiguration.provisionDeviceSecret = newIssuer().cert;
  await ok('POST', '/api/deviceProfile', renamed);
  expect((await nonceOf(profileId)).state).toBe('UNPROVEN');
});

test('the proof of an issuer may come with the profile: for the own tenant only, or nothing is saved', async () => {
  const issuer = newIssuer();
  const { tenantId } = await ok('GET', '/api/auth/user');
  const text = (tenant: string) => `millrace-issuer-proof:${tenant}:${randomUUID()}`;
  const nonce = text(tenantId.id);
  const type = 'X509_CERTIFICATE_CHAIN';
  const provisionConfiguration = {
    type,
    provisionDeviceSecret: issuer.cert,
    certificateRegExPattern: '(.*)',
    allowCreateNewDevicesByX509Certificate: true,
  };
  const profile = { name: `chain-${randomUUID()}`, provisionType: type, profileData: { provisionConfiguration } };
  const foreign = text(randomUUID());
  for (const [issuerProof, refusal] of [
    [{ nonce, signature: signatureOf(nonce, newIssuer()) }, /^400\/31 The signature does not match/],
    [{ nonce: text(tenantId.id), signature: signatureOf(nonce, issuer) }, /^400\/31 The signature does not match/],
    [{ nonce: foreign, signature: signatureOf(foreign, issuer) }, /^400\/31 The nonce of issuerProof must be/],
    [{ nonce: 'short', signature: signatureOf('short', issuer) }, /^400\/31 The nonce of issuerProof must be/],
  ] as const) {
    expect(await fault('POST', '/api/deviceProfile', { ...profile, issuerProof })).toMatch(refusal);
  }
  const issuerProof = { nonce, signature: signatureOf(nonce, issuer) };
  expect(await fault('POST', '/api/deviceProfile', { name: profile.name, issuerProof })).toMatch(/has no issuer/);
  const saved = await ok('POST', '/api/deviceProfile', { ...profile, issuerProof });
  expect(await nonceOf(saved.id.id)).toEqual({ profileId: saved.id.id, name: profile.name, state: 'PROVEN', nonce });
  expect(await signIn(maker.make(uniqueName(), { issuer }))).toBe(0);
  // Another certificate with its proof in the same request.
  const next = newIssuer();
  saved.profileData.provisionConfiguration.provisionDeviceSecret = next.cert;
  await ok('POST', '/api/deviceProfile', {
    ...saved,
    issuerProof: { nonce, signature: signatureOf(nonce, next) },
  });
  expect((await nonceOf(saved.id.id)).state).toBe('PROVEN');
  expect(await signIn(maker.make(uniqueName(), { issuer: next }))).toBe(0);
  expect(await signIn(maker.make(uniqueName(), { issuer }))).toBe(refused);
});

test("a tenant that saves another one's issuers gets none of its devices, and blocks none of them", async () => {
  const { admin } = await newTenant();
  const root = newIssuer();
  const middle = maker.make(`middle ${randomUUID()}`, { issuer: root, isIssuer: true });
  for (const issuer of [root, middle]) await newChainProfile(issuer, { proven: false, admin: admin.token });
  const profileId = await newChainProfile(root);
  const name = uniqueName();
  expect(await signIn(maker.make(name, { issuer: middle }), { chain: [middle] })).toBe(0);
  expect(await deviceNamed(name)).toMatchObject({ deviceProfileId: { id: profileId } });
  // Issuers of the same name with other keys are proven, but have signed none of these certificates.
  const commonName = new X509Certificate(root.cert).subject.slice('CN='.length);
  await newChainProfile(maker.make(commonName, { isIssuer: true }), { admin: admin.token });
  const second = uniqueName();
  expect(await signIn(maker.make(second, { issuer: root }))).toBe(0);
  expect(await deviceNamed(second)).toMatchObject({ deviceProfileId: { id: profileId } });
});

test('what is no certificate of an issuer is refused', async () => {
  const type = 'X509_CERTIFICATE_CHAIN';
  for (const secret of ['no certificate', maker.make('a device').cert, newIssuer().cert.slice(0, 200)]) {
    const provisionConfiguration = { type, provisionDeviceSecret: secret };
    const profile = { name: `chain-${randomUUID()}`, provisionType: type, profileData: { provisionConfiguration } };
    expect(await fault('POST', '/api/deviceProfile', profile)).toMatch(
      /^400\/31 The certificate in provisionDeviceSecret/,
    );
  }
});
