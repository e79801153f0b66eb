/**
 * Servers and streams that cannot keep the promise of `ingest.ack: stream` end a start with the reason and what to
 * change. Against real servers.
 */
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  AckPolicy,
  DiscardPolicy,
  jetstream,
  jetstreamManager,
  RetentionPolicy,
  StorageType,
  type StreamConfig,
} from '@nats-io/jetstream';
import { AuthorizationError, connect, nkeys } from '@nats-io/transport-node';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { StartError } from '../../src/base/errors.ts';
import { createLog } from '../../src/base/log.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { checkRights } from '../../src/stream/check-rights.ts';
import { inspectStreams } from '../../src/stream/inspect-streams.ts';
import { prepareStreams, tryStreams } from '../../src/stream/prepare-streams.ts';
import { readFrames } from '../../src/stream/read-frames.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
import type { StreamSettings } from '../../src/stream/stream-names.ts';
import { eventually } from '../harness/api.ts';
import { CertificateMaker } from '../harness/certificates.ts';
import { NatsCluster, type NodeOfCluster, oldNatsServer } from '../harness/nats-cluster.ts';

let nodes: NatsCluster;

beforeAll(async () => {
  nodes = await NatsCluster.start();
});

afterAll(() => nodes?.stop());

const defaults = loadConfig({}).stream;

function settingsOf(changes: Partial<StreamSettings>): StreamSettings {
  return { ...defaults, url: nodes.url, bytesMax: 64 * 1024 ** 2, ...changes };
}

async function refusal(settings: StreamSettings, installation = 'one', copies: string[] = []): Promise<string> {
  try {
    return `accepted: ${await tryStreams(settings, { installation, copies })}`;
  } catch (error) {
    if (error instanceof StartError) return error.message;
    throw error;
  }
}

async function withServer<T>(
  options: Parameters<typeof NatsCluster.start>[0],
  use: (server: NatsCluster) => Promise<T>,
): Promise<T> {
  const server = await NatsCluster.start({ nodes: 1, ...options });
  try {
    return await use(server);
  } finally {
    await server.stop();
  }
}

test('three nodes are accepted, and a second start finds its streams', async () => {
  const settings = settingsOf({ name: 'fine', monitorUrls: nodes.monitorUrls });
  expect(await refusal(settings)).toBe('accepted: undefined');
  expect(await refusal(settings)).toBe('accepted: undefined');
  const { config } = await nodes.manage((manager) => manager.streams.info('fine-live'));
  expect(config).toMatchObject({
    num_replicas: 3,
    storage: StorageType.File,
    discard: DiscardPolicy.New,
    retention: RetentionPolicy.Limits,
  });
  const placeInMemory = async (stream: string) =>
    (await nodes.manage((manager) => manager.consumers.info(stream, 'millrace'))).config.mem_storage ?? false;
  expect(await placeInMemory('fine-live')).toBe(true);
  // Stored frames stay until they were given as JSON.
  const json = { ...settings, name: 'json', json: { ...settings.json, enabled: true } };
  expect(await refusal(json)).toBe('accepted: undefined');
  expect(await placeInMemory('json-live')).toBe(false);
});

test('the settings of servers in the documentation make a cluster that is accepted', async () => {
  const [, lines] = /```text\n(server_name: a\n[\s\S]+?)```/.exec(readFileSync('docs/durability.md', 'utf8'))!;
  const linesOf: NonNullable<Parameters<typeof NatsCluster.start>[0]>['linesOf'] = (node) =>
    lines!
      .replace('server_name: a', `server_name: ${node.name}`)
      .replace('port: 4222', `port: ${node.client}`)
      .replace('http_port: 8222', `http_port: ${node.monitor}`)
      .replace('port: 6222', `port: ${node.cluster}`)
      .replace('/var/lib/nats', node.directory)
      .replace(/routes: \[.+?\]/, `routes: [${node.routes}]`);
  await withServer({ nodes: 3, linesOf }, async ({ url, monitorUrls }) => {
    const owner = { installation: 'one', copies: [] };
    const unchecked: string[] = [];
    const settings = { ...defaults, url, monitorUrls: `${monitorUrls},http://127.0.0.1:1` };
    expect(await tryStreams(settings, owner, (why) => unchecked.push(why))).toBeUndefined();
    expect([...new Set(unchecked)]).toEqual(['http://127.0.0.1:1 does not answer']);
    const [first] = monitorUrls.split(',');
    for (const [named, why] of [
      ['', 'the list is empty, name the monitoring pages of the servers'],
      [`${first},${first}/`, '2 of 3 servers with JetStream have no page in the list'],
    ]) {
      expect((await inspectStreams({ ...settings, monitorUrls: named! }, owner)).unchecked).toEqual([why]);
    }
  });
});

test('servers that do not answer are no refusal: a start waits for them', async () => {
  expect(await refusal(settingsOf({ url: 'nats://127.0.0.1:1' }))).toMatch(/^accepted: .+/);
});

test.skipIf(!existsSync(oldNatsServer()))(
  'a server that does not know the sync of each message is refused',
  async () => {
    await withServer({ program: oldNatsServer(), jetstream: '' }, async ({ url }) => {
      expect(await refusal(settingsOf({ url }))).toMatch(/is 2\.9\.10, which cannot sync each message .* 2\.10/);
    });
  },
);

test('a server that syncs later is refused when its monitoring page says so', async () => {
  await withServer({ jetstream: '', nodes: 3 }, async ({ url, monitorUrls }) => {
    expect(await refusal(settingsOf({ url, monitorUrls }))).toMatch(/set "sync_interval: always"/);
  });
});

test('a node that has JetStream off, as after a full disk, is no refusal while the others have a majority', async () => {
  const without = 3;
  const linesOf = ({ name, client, cluster, monitor, routes, directory }: NodeOfCluster) => `server_name: ${name}
host: 127.0.0.1
port: ${client}
http: "127.0.0.1:${monitor}"
${name === `n${without}` ? '' : `jetstream { store_dir: "${directory}", sync_interval: always }`}
cluster { name: test, host: 127.0.0.1, port: ${cluster}, routes: [${routes}] }
`;
  await withServer({ nodes: without + 1, replicas: without, linesOf }, async ({ url, monitorUrls }) => {
    const unchecked: string[] = [];
    const owner = { installation: 'one', copies: [] };
    const onUnchecked = (why: string) => void unchecked.push(why);
    // Only the node without JetStream is named, so the start is connected to this one.
    const settings = { ...defaults, url: url.split(',')[without]!, monitorUrls, bytesMax: 64 * 1024 ** 2 };
    expect(await tryStreams(settings, owner, onUnchecked)).toBeUndefined();
    expect(unchecked).toEqual([`the server at ${monitorUrls.split(',')[without]} has JetStream off`]);
    const client = new StreamClient(settings, createLog('error', 'test'), 'test', (link) =>
      prepareStreams(link, settings, owner),
    );
    await client.start();
    try {
      const number = await client.link!.publish('millrace-live', 'millrace.live.0', Buffer.from('frame'), 10_000);
      expect(number).toBeGreaterThan(0);
    } finally {
      await client.close();
    }
  });
});

test('a server without a cluster is refused', async () => {
  await withServer({}, async ({ url }) => {
    expect(await refusal(settingsOf({ url }))).toMatch(/is in no cluster, and STREAM_REPLICAS is 3/);
  });
});

test('servers that take only small messages are refused', async () => {
  await withServer({ settings: 'max_payload: 65536', nodes: 3 }, async ({ url }) => {
    expect(await refusal(settingsOf({ url }))).toMatch(/frames need 1024 KiB: raise max_payload/);
  });
});

test('a wrong login is refused, the right one accepted', async () => {
  const settings = 'authorization { user: millrace, password: right }';
  await withServer({ settings }, async ({ url }) => {
    const login = { url, user: 'millrace', password: 'wrong' };
    expect(await refusal(settingsOf(login))).toMatch(/the login was refused .* STREAM_PASSWORD/);
    // With the right login the start reaches the next check.
    expect(await refusal(settingsOf({ ...login, password: 'right' }))).toMatch(/is in no cluster/);
  });
});

test('a wrong login is refused by a cluster, whose servers name each other', async () => {
  const settings = 'authorization { users: [{ user: millrace, password: right }] }';
  await withServer({ settings, nodes: 3, login: { user: 'millrace', pass: 'right' } }, async (servers) => {
    const wrong = settingsOf({ url: servers.url, user: 'millrace', password: 'wrong' });
    expect(await refusal(wrong)).toMatch(/the login was refused .* STREAM_PASSWORD/);
    await expect(inspectStreams(wrong, { installation: 'one', copies: [] })).rejects.toThrow(AuthorizationError);
    const frames = readFrames(wrong, {
      stream: undefined,
      subject: undefined,
      follows: false,
      signal: new AbortController().signal,
    });
    await expect(frames.next()).rejects.toThrow(/the login was refused .* STREAM_PASSWORD/);
    expect(await refusal(settingsOf({ ...wrong, password: 'right' }))).toBe('accepted: undefined');
    await servers.kill(0);
    await servers.kill(2);
    expect(await refusal(wrong)).toMatch(/the login was refused .* STREAM_PASSWORD/);
  });
});

test('the logins of the documentation: one makes the streams, one reads the JSON by its consumer and nothing else', async () => {
  const [, lines] = /```text\n(accounts \{[\s\S]+?)```/.exec(readFileSync('docs/durability.md', 'utf8'))!;
  const login = { user: 'millrace', pass: '…' };
  await withServer({ settings: lines!, nodes: 3, login }, async (servers) => {
    const settings = settingsOf({ url: servers.url, user: login.user, password: login.pass });
    const json = { ...settings, json: { ...settings.json, enabled: true } };
    expect(await refusal(json)).toBe('accepted: undefined');
    const publish = () => servers.manage((manager) => manager.jetstream().publish('millrace.json.t.p.d', '{}'));
    await servers.manage(async (manager) => {
      for (const name of ['reader', 'another']) {
        await manager.consumers.add('millrace-json', { durable_name: name, ack_policy: AckPolicy.Explicit });
      }
    });
    const connection = await connect({ servers: servers.url.split(','), user: 'reader', pass: '…' });
    try {
      const received: string[] = [];
      connection.subscribe('>', {
        callback: (_error, { subject }) => {
          received.push(subject);
        },
      });
      await connection.flush();
      await publish();
      expect(received).toEqual([]);
      const manager = await jetstreamManager(connection, { checkAPI: false, timeout: 2_000 });
      // Each server learns of the imports of an account a moment after the start.
      const get = () => manager.jetstream().consumers.get('millrace-json', 'reader');
      const consumer = await eventually(() => get().catch(() => undefined), 30_000);
      const message = await consumer.next({ expires: 5_000 });
      expect(message?.string()).toBe('{}');
      expect(await message!.ackAck()).toBe(true);
      const { consumers, streams } = manager;
      const own = { durable_name: 'own', ack_policy: AckPolicy.Explicit };
      for (const call of [
        () => manager.jetstream().publish('millrace.live.0', 'no', { retries: 0 }),
        () => streams.purge('millrace-json'),
        () => streams.delete('millrace-json'),
        () => streams.getMessage('millrace-json', { seq: 1 }),
        () => consumers.delete('millrace-live', 'millrace'),
        () => consumers.add('millrace-json', own),
        () => consumers.add('millrace-json', { ...own, deliver_subject: 'millrace.live.0' }),
        () => consumers.update('millrace-json', 'reader', { max_deliver: 1 }),
        () => consumers.delete('millrace-json', 'reader'),
        () => consumers.delete('millrace-json', 'another'),
        () => consumers.info('millrace-json', 'another'),
        () => connection.request('$JS.API.CONSUMER.MSG.NEXT.millrace-json.another', '1', { timeout: 2_000 }),
        () => connection.request('$JS.ACK.millrace-json.another.1.1.1.1.0', '', { timeout: 2_000 }),
      ]) {
        await expect(call(), String(call)).rejects.toThrow();
      }
      // A subject of frames as that of the answer: the answer stays in the account of the reader.
      const next = '$JS.API.CONSUMER.MSG.NEXT.millrace-json.reader';
      connection.publish(next, '1', { reply: 'millrace.live.0' });
      await connection.flush();
      await publish();
      await eventually(() => received.includes('millrace.live.0') || received.includes('millrace.json.t.p.d'), 30_000);
      const state = await servers.manage(async (all) => {
        const names = ['reader', 'another', 'millrace'] as const;
        const [lives, jsons] = await Promise.all(['live', 'json'].map((lane) => all.streams.info(`millrace-${lane}`)));
        const there = await Promise.all(
          names.map((n, i) => all.consumers.info(i < 2 ? 'millrace-json' : 'millrace-live', n)),
        );
        return [lives!.state.messages, jsons!.state.messages, there.length];
      });
      expect(state).toEqual([0, 2, 3]);
    } finally {
      await connection.close();
    }
  });
});

test('limits of an account, and permissions of its login, that keep frames from ClickHouse are refused', async () => {
  const denied = (subject: string) => `, permissions: { publish: { deny: ["${subject}"] } }`;
  const settingsWith = (ofPlain = '') => {
    const account = (name: string, limits: string, permissions = '') =>
      `${name} { jetstream: ${limits}, users: [{ user: ${name}, password: x${permissions} }] }`;
    return `accounts {
${account('plain', 'enabled', ofPlain)}
${account('acks', '{ max_mem: 1GB, max_file: 1GB, max_ack_pending: 1000 }')}
${account('streams', '{ max_mem: 1GB, max_file: 1GB, max_streams: 1 }')}
${account('next', 'enabled', denied('$JS.API.CONSUMER.MSG.NEXT.>'))}
${account('confirm', 'enabled', denied('$JS.ACK.>'))}
${account('api', 'enabled', denied('$JS.API.CONSUMER.>'))}
}`;
  };
  const login = { user: 'plain', pass: 'x' };
  await withServer({ settings: settingsWith(), nodes: 3, login }, async (servers) => {
    const settings = settingsOf({ url: servers.url, user: 'plain', password: 'x' });
    const refused = (user: string) => refusal({ ...settings, user });
    expect(await refused('plain')).toBe('accepted: undefined');
    expect(await refused('acks')).toMatch(/exceeds system limit of 1000\. .* max_ack_pending to 100000/);
    expect(await refused('streams')).toMatch(/maximum number of streams reached\. .*max_streams/);
    expect(await refused('next')).toMatch(
      /may not publish to "\$JS\.API\.CONSUMER\.MSG\.NEXT\..+": change its permissions/,
    );
    expect(await refused('confirm')).toMatch(/may not publish to "\$JS\.ACK\..+": change its permissions/);
    const inspected = inspectStreams({ ...settings, user: 'confirm' }, { installation: 'one', copies: [] });
    await expect(inspected).rejects.toThrow(/may not publish to "\$JS\.ACK\..+": change its permissions/);
    expect(await refused('api')).toMatch(/may not publish to "\$JS\.API\.CONSUMER\.INFO\..+": change its permissions/);
    // The same while a process runs.
    const client = new StreamClient(
      settings,
      createLog('error', 'test'),
      'test',
      async () => {},
      (link) => checkRights(link, settings),
    );
    await client.start();
    try {
      const failure = async () => {
        await client.checkAgain();
        return client.failure ?? 'none';
      };
      expect(await failure()).toBe('none');
      servers.reloadWith(settingsWith(denied('$JS.ACK.>')));
      await eventually(async () => /may not publish to "\$JS\.ACK\./.test(await failure()));
      servers.reloadWith(settingsWith());
      await eventually(async () => (await failure()) === 'none');
    } finally {
      await client.close();
    }
  });
});

test('the program of the documentation reads on after a server, with its data, was replaced', async () => {
  const [, accounts] = /```text\n(accounts \{[\s\S]+?)```/.exec(readFileSync('docs/durability.md', 'utf8'))!;
  const [, program] = /```js\n(import \{ jetstream \}[\s\S]+?)```/.exec(readFileSync('docs/stream.md', 'utf8'))!;
  const login = { user: 'millrace', pass: '…' };
  await withServer({ settings: accounts!, nodes: 3, login }, async (servers) => {
    const settings = settingsOf({ url: servers.url, user: login.user, password: login.pass });
    const json = { ...settings, json: { ...settings.json, enabled: true, bytesMax: 16 * 1024 ** 2 } };
    expect(await refusal(json)).toBe('accepted: undefined');
    const consumerInfo = { durable_name: 'reader', ack_policy: AckPolicy.Explicit };
    await servers.manage((manager) => manager.consumers.add('millrace-json', consumerInfo));
    const addresses = servers.url.replaceAll('nats://', '').replaceAll(',', "','");
    const lines = program!.replace("'a:4222', 'b:4222', 'c:4222'", `'${addresses}'`);
    const child = spawn(process.execPath, ['--input-type=module', '-e', lines], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let output = '';
    child.stdout.on('data', (chunk) => (output += chunk));
    try {
      for (let n = 0; n < 3; n += 1) {
        const publish = () =>
          servers.manage((manager) => {
            return manager.jetstream().publish('millrace.json.t.p.d', `{"name":"pump ${n}","ts":1,"values":{}}`);
          });
        await eventually(() => publish().catch(() => undefined), 60_000);
        await eventually(() => output.includes(`pump ${n} 1`), 90_000);
        const { cluster } = await servers.manage((manager) => manager.consumers.info('millrace-json', 'reader'));
        if (n < 2) await servers.replace(Number(cluster!.leader!.slice(1)));
      }
    } finally {
      child.kill();
    }
  });
}, 300_000);

test('STREAM_CREDS: the user of a file of credentials is accepted, one of another account is refused', async () => {
  const [operator, system, account] = [nkeys.createOperator(), nkeys.createAccount(), nkeys.createAccount()];
  const directory = mkdtempSync(join(tmpdir(), 'millrace-stream-creds-'));
  const credentialsOf = (name: string, issuer: KeyPair, secondsMax = 3_600): string => {
    const user = nkeys.createUser();
    const jwt = claimsOf(issuer, user, 'user', { pub: {}, sub: {}, subs: -1, data: -1, payload: -1 }, secondsMax);
    const seed = new TextDecoder().decode(user.getSeed());
    const file = join(directory, name);
    writeFileSync(
      file,
      `-----BEGIN NATS USER JWT-----\n${jwt}\n------END NATS USER JWT------\n\n` +
        `-----BEGIN USER NKEY SEED-----\n${seed}\n------END USER NKEY SEED------\n`,
    );
    return file;
  };
  const ofAccount = (pair: KeyPair) =>
    claimsOf(operator, pair, 'account', { limits: { ...unlimited, ...inJetStream } });
  const settings = `operator: ${claimsOf(operator, operator, 'operator', {})}
system_account: ${system.getPublicKey()}
resolver: MEMORY
resolver_preload: {
  ${system.getPublicKey()}: ${claimsOf(operator, system, 'account', { limits: unlimited })}
  ${account.getPublicKey()}: ${ofAccount(account)}
}`;
  try {
    await withServer({ settings }, async ({ url }) => {
      const right = settingsOf({ url, creds: credentialsOf('right', account) });
      // The right login gets as far as the next check.
      expect(await refusal(right)).toMatch(/is in no cluster/);
      const wrong = settingsOf({ url, creds: credentialsOf('wrong', nkeys.createAccount()) });
      expect(await refusal(wrong)).toMatch(/the login was refused .* STREAM_CREDS/);
      expect(await refusal(settingsOf({ url }))).toMatch(/the login was refused .* STREAM_CREDS/);
      // Credentials that expire while the process runs are replaced in their file.
      const expiring = settingsOf({ url, ackMsMax: 500, creds: credentialsOf('expiring', account, 3) });
      const client = new StreamClient(expiring, createLog('error', 'test'), 'test', async () => {});
      await client.start();
      await eventually(() => /the login was refused/.test(client.silence ?? ''), 30_000);
      writeFileSync(expiring.creds, 'in the middle of a write');
      // The second try begins when the first one has failed.
      let tries = 0;
      for await (const { type } of client.link!.connection.status()) {
        if (type === 'reconnecting') tries += 1;
        if (tries === 2) break;
      }
      credentialsOf('expiring', account);
      await eventually(() => client.link!.isConnected, 30_000);
      await client.close();
    });
    const empty = join(directory, 'empty');
    writeFileSync(empty, '');
    expect(await refusal(settingsOf({ creds: empty }))).toMatch(/STREAM_CREDS is .*has no credentials: name a file/);
    expect(await refusal(settingsOf({ creds: join(directory, 'none') }))).toMatch(/STREAM_CREDS is .*cannot be read/);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

type KeyPair = ReturnType<typeof nkeys.createUser>;

const unlimited = { subs: -1, data: -1, payload: -1, imports: -1, exports: -1, wildcards: true, conn: -1, leaf: -1 };
const inJetStream = { mem_storage: -1, disk_storage: -1, streams: -1, consumer: -1 };

/** A JWT of the servers' own kind, in which `issuer` names the rights of `subject`. */
function claimsOf(issuer: KeyPair, subject: KeyPair, type: string, rights: object, secondsMax?: number): string {
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const [iss, sub] = [issuer.getPublicKey(), subject.getPublicKey()];
  const iat = Math.floor(Date.now() / 1000);
  const claims = { jti: randomUUID(), iat, iss, sub, name: type, ...(secondsMax && { exp: iat + secondsMax }) };
  const head = part({ typ: 'JWT', alg: 'ed25519-nkey' });
  const text = `${head}.${part({ ...claims, nats: { ...rights, type, version: 2 } })}`;
  return `${text}.${Buffer.from(issuer.sign(Buffer.from(text))).toString('base64url')}`;
}

test('TLS: the servers are known by STREAM_TLS_CA, and an expired certificate is not accepted', async () => {
  const maker = new CertificateMaker();
  const directory = mkdtempSync(join(tmpdir(), 'millrace-stream-tls-'));
  const file = (name: string, text: string): string => {
    writeFileSync(join(directory, name), text);
    return join(directory, name);
  };
  try {
    const authority = maker.make('authority', { isIssuer: true });
    const tlsCa = file('ca', authority.cert);
    for (const [name, toDays, outcome] of [
      ['valid', 2, /is in no cluster/],
      ['expired', -0.5, /^accepted: .*expired/],
    ] as const) {
      const { cert, key } = maker.make('localhost', { issuer: authority, fromDays: -1, toDays });
      const pair = `cert_file: "${file(`${name}.cert`, cert)}", key_file: "${file(`${name}.key`, key)}"`;
      await withServer({ settings: `tls { ${pair} }` }, async ({ url }) => {
        const named = url.replace('127.0.0.1', 'localhost');
        expect(await refusal(settingsOf({ url: named, tlsCa }))).toMatch(outcome);
      });
    }
    expect(await refusal(settingsOf({ tlsCa: join(directory, 'none') }))).toMatch(/STREAM_TLS_CA is .*cannot be read/);
  } finally {
    maker.remove();
    rmSync(directory, { recursive: true });
  }
});

test('streams without room on the disks of the servers are refused', async () => {
  const settings = settingsOf({ name: 'huge', bytesMax: 1024 ** 4 });
  expect(await refusal(settings)).toMatch(/cannot be made: .*max_file_store.*STREAM_BYTES_MAX/);
});

test('a stream of another installation, and one that is not of Millrace, are refused', async () => {
  const settings = settingsOf({ name: 'owned' });
  expect(await refusal(settings, 'one')).toBe('accepted: undefined');
  expect(await refusal(settings, 'two')).toMatch(/owned-live .* belongs to another installation: choose another/);
  await inspectStreams(settings, { installation: 'one', copies: [] });
  await expect(inspectStreams(settings, { installation: 'two', copies: [] })).rejects.toThrow(/belongs to another/);
  await nodes.manage((manager) => manager.streams.add({ name: 'foreign-live', subjects: ['foreign.live.*'] }));
  expect(await refusal(settingsOf({ name: 'foreign' }))).toMatch(/was not made by Millrace/);
});

test('a restored instance takes up the streams of the one that it replaces, and no other copy may use them', async () => {
  const settings = settingsOf({ name: 'copies' });
  const accepts = async (copies: string[]) =>
    expect(await refusal(settings, 'one', copies)).toBe('accepted: undefined');
  await accepts([]);
  await accepts(['first']);
  await accepts(['first']);
  const another = /copies-live .* was taken up by another instance .* restored .*: choose another STREAM_NAME/;
  expect(await refusal(settings, 'one', ['second'])).toMatch(another);
  await expect(inspectStreams(settings, { installation: 'one', copies: ['second'] })).rejects.toThrow(another);
  expect(await refusal(settings, 'one', [])).toMatch(another);
  // A restore of a backup of the restored instance.
  await accepts(['first', 'third']);
  expect(await refusal(settings, 'one', ['first'])).toMatch(another);
  const { metadata } = (await nodes.manage((manager) => manager.streams.info('copies-late'))).config;
  expect(metadata).toMatchObject({ millrace_installation: 'one', millrace_copy: 'third' });
});

test('streams that the instance of the backup still reads are refused to a restored one', async () => {
  const settings = settingsOf({ name: 'read' });
  expect(await refusal(settings)).toBe('accepted: undefined');
  const connection = await nodes.connect();
  try {
    const consumer = await jetstream(connection).consumers.get('read-live', 'millrace');
    const reading = await consumer.fetch({ max_messages: 1, expires: 30_000 });
    const read = reading[Symbol.asyncIterator]().next();
    const inUse = /read-live .* is in use by the instance from whose backup this one was restored.*: choose another/;
    await eventually(() =>
      nodes.manage(async (manager) => (await manager.consumers.info('read-live', 'millrace')).num_waiting > 0),
    );
    expect(await refusal(settings, 'one', ['first'])).toMatch(inUse);
    reading.stop();
    await read;
  } finally {
    await connection.close();
  }
  await eventually(async () => (await refusal(settings, 'one', ['first'])) === 'accepted: undefined', 30_000);
});

test('a stream of the earlier form is accepted, one of a later version is refused', async () => {
  const settings = settingsOf({ name: 'format' });
  expect(await refusal(settings)).toBe('accepted: undefined');
  const { metadata } = (await nodes.manage((manager) => manager.streams.info('format-live'))).config;
  expect(metadata).toMatchObject({ millrace_format: '2' });
  const setFormat = (format: string) =>
    nodes.manage((manager) =>
      manager.streams.update('format-live', { metadata: { ...metadata, millrace_format: format } }),
    );
  await setFormat('1');
  expect(await refusal(settings)).toBe('accepted: undefined');
  await setFormat('3');
  expect(await refusal(settings)).toMatch(/format-live .* was made by a later version: start that version/);
});

const changes: [string, Partial<StreamConfig>, RegExp][] = [
  ['with fewer replicas', { num_replicas: 1 }, /has 1 replica and STREAM_REPLICAS is 3: run "nats stream edit/],
  ['that discards its oldest frames', { discard: DiscardPolicy.Old }, /discards its oldest frames.*--discard new/],
  ['that forgets by age', { max_age: 60_000_000_000 }, /forgets frames by their age or number/],
  ['that forgets by number', { max_msgs: 10 }, /forgets frames by their age or number/],
];

test.each(changes)('a stream %s is refused', async (_what, change, reason) => {
  const name = `changed${changes.findIndex(([, each]) => each === change)}`;
  expect(await refusal(settingsOf({ name }))).toBe('accepted: undefined');
  await nodes.manage((manager) => manager.streams.update(`${name}-live`, change));
  expect(await refusal(settingsOf({ name }))).toMatch(reason);
});

test('streams of another size are refused at a start, both at once, and not while hosts run', async () => {
  const settings = settingsOf({ name: 'size' });
  expect(await refusal(settings)).toBe('accepted: undefined');
  const max_bytes = 100 * 1024 ** 2;
  for (const lane of ['live', 'late']) {
    await nodes.manage((manager) => manager.streams.update(`size-${lane}`, { max_bytes }));
    const said = await refusal(settings);
    expect(said).toMatch(
      /^STREAM_BYTES_MAX is 67108864, but .*size-live holds 104857600 bytes.*size-live --max-bytes 67/,
    );
    expect(/size-late holds 104857600 bytes.* and "nats stream edit size-late --max-bytes/.test(said)).toBe(
      lane === 'late',
    );
  }
  // A worker that starts again, and a consumer that is made again.
  await nodes.manage((manager) => manager.consumers.delete('size-live', 'millrace'));
  const client = new StreamClient(settings, createLog('error', 'test'), 'test', (link) =>
    prepareStreams(link, settings, { installation: 'one', copies: [] }),
  );
  await client.start();
  try {
    expect(client.failure).toBeUndefined();
  } finally {
    await client.close();
  }
});

test.each([
  ['deliver', { max_deliver: 3 }],
  ['filter', { filter_subjects: ['filter.live.1', 'filter.live.2'] }],
  ['headers', { headers_only: true }],
])('a consumer that would pass over frames, or give them without their bytes, is refused: %s', async (name, change) => {
  const settings = settingsOf({ name });
  expect(await refusal(settings)).toBe('accepted: undefined');
  await nodes.manage((manager) => manager.consumers.update(`${name}-live`, 'millrace', change));
  expect(await refusal(settings)).toMatch(/-live was changed, so it may skip frames: run "nats consumer rm \w+-live/);
});
