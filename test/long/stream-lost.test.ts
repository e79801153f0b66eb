/** A connection that is lost while the process runs: the reason is known in words, and it returns by itself. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { live } from '../../src/journal/journal.ts';
import { hasCertificate, ServerCertificates } from '../../src/stream/server-certificates.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
import type { StreamSettings } from '../../src/stream/stream-names.ts';
import { StreamWriter } from '../../src/stream/stream-writer.ts';
import { eventually } from '../harness/api.ts';
import { CertificateMaker } from '../harness/certificates.ts';
import { leastMs } from '../harness/least-time.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';

const waitMsMax = 40_000;
const log = createLog('error', 'test');

/** Connects to one node with these settings, and calls with the client and the node. */
async function connected(
  nodeSettings: string,
  settingsOf: (url: string) => Partial<StreamSettings>,
  use: (client: StreamClient, node: NatsCluster) => Promise<void>,
): Promise<void> {
  const node = await NatsCluster.start({ nodes: 1, settings: nodeSettings });
  const settings = { ...loadConfig({}).stream, ackMsMax: 500, ...settingsOf(node.url) };
  const client = new StreamClient(settings, log, 'test', async () => {});
  try {
    await client.start();
    expect(client.failure).toBeUndefined();
    await use(client, node);
  } finally {
    await client.close();
    await node.stop();
  }
}

async function failsWith(client: StreamClient, reason: RegExp): Promise<void> {
  await eventually(() => reason.test(client.silence ?? ''), waitMsMax);
}

async function returns(client: StreamClient): Promise<void> {
  await eventually(() => client.link!.isConnected, waitMsMax);
  // No reader runs here.
  client.link!.answered('read');
  expect(client.silence).toBeUndefined();
}

test('servers that stop answering are noticed, also while nothing is published', async () => {
  await connected(
    '',
    (url) => ({ url }),
    async (client, node) => {
      await node.kill(0);
      await failsWith(client, /no server can be reached: .*REFUSED/i);
      node.startAgain(0);
      await returns(client);
    },
  );
});

test('a stop waits only a moment for servers that do not answer', async () => {
  const stoppedMs = async () => {
    let ms = 0;
    await connected(
      '',
      (url) => ({ url }),
      async (client, node) => {
        node.signal(0, 'SIGSTOP');
        const begun = performance.now();
        await client.close();
        ms = performance.now() - begun;
      },
    );
    return ms;
  };
  expect(await leastMs(2_500, stoppedMs)).toBeLessThan(2_500);
});

test('a server that takes only small messages now is named, and frames are not called too large', async () => {
  await connected(
    '',
    (url) => ({ url }),
    async (client, node) => {
      await node.startWith('max_payload: 65536');
      await eventually(() => /64 KiB in one message.*: raise max_payload/.test(client.failure ?? ''), waitMsMax);
      const deps = { client, settings: loadConfig({}).stream, clock: systemClock, log, metrics: new Metrics() };
      const local = { append: () => Promise.reject(new Error('not used')) };
      const writer = new StreamWriter({ ...deps, settings: { ...deps.settings, ackMsMax: 500 }, local });
      const frame = { lane: live, order: 1n, rows: 1, parts: [Buffer.alloc(500_000)], device: 1 };
      await expect(writer.append([frame])).rejects.toMatchObject({ reason: 'stream_away' });
      expect(writer.refusal()?.message).toMatch(/raise max_payload/);
      writer.close();
      node.reloadWith('max_payload: 1048576');
      await eventually(() => client.failure === undefined && client.link!.isConnected, waitMsMax);
    },
  );
});

test('a login that the servers do not accept any more is named, and may be repaired at the servers', async () => {
  const login = (password: string) => `authorization { user: millrace, password: ${password} }`;
  await connected(
    login('right'),
    (url) => ({ url, user: 'millrace', password: 'right' }),
    async (client, node) => {
      await node.startWith(login('other'));
      await failsWith(client, /the login was refused .*: check STREAM_USER, STREAM_PASSWORD/);
      await node.startWith(login('right'));
      await returns(client);
    },
  );
});

test('a certificate that has expired is named, and may be renewed with its authority', async () => {
  const maker = new CertificateMaker();
  const directory = mkdtempSync(join(tmpdir(), 'millrace-stream-lost-'));
  const file = (name: string, text: string): string => {
    writeFileSync(join(directory, name), text);
    return join(directory, name);
  };
  const authority = maker.make('authority', { isIssuer: true });
  const tlsOf = (name: string, toDays: number, issuer = authority): string => {
    const { cert, key } = maker.make('localhost', { issuer, fromDays: -1, toDays });
    return `tls { cert_file: "${file(`${name}.cert`, cert)}", key_file: "${file(`${name}.key`, key)}" }`;
  };
  const tlsCa = file('ca', authority.cert);
  try {
    await connected(
      tlsOf('valid', 5),
      (url) => ({ url: url.replace('127.0.0.1', 'localhost'), tlsCa }),
      async (client, node) => {
        const settings = {
          ...loadConfig({}).stream,
          url: node.url.replace('nats://127.0.0.1', 'tls://localhost'),
          tlsCa,
        };
        const unread: string[] = [];
        const certificates = new ServerCertificates(settings, 'test', (reason) => unread.push(reason));
        const daysLeft = async () => {
          await certificates.refresh();
          return certificates.first?.daysLeft;
        };
        expect(hasCertificate(client.link!.connection)).toBe(true);
        // The authority ends first, as `make` gives it two days.
        expect(await daysLeft()).toBeCloseTo(2, 1);
        // A file that is being replaced ends no process: what was read last counts meanwhile.
        rmSync(tlsCa);
        expect(await daysLeft()).toBeCloseTo(2, 1);
        expect(unread).toEqual([expect.stringMatching(/^STREAM_TLS_CA is .*cannot be read/)]);
        file('ca', authority.cert);
        await node.startWith(tlsOf('expired', -0.5));
        expect(await eventually(async () => ((await daysLeft()) ?? 1) <= 0, waitMsMax)).toBe(true);
        await failsWith(client, /the certificate of the servers is not accepted .*expired.*: renew it/);
        const next = maker.make('next authority', { isIssuer: true });
        await node.startWith(tlsOf('renewed', 2, next));
        file('ca', next.cert);
        await returns(client);
        expect(await daysLeft()).toBeGreaterThan(1);
      },
    );
  } finally {
    maker.remove();
    rmSync(directory, { recursive: true });
  }
});
