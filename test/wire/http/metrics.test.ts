/** /metrics of the running engine: form, names, size, and that ops/ names only metrics that exist. */
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { beforeAll, expect, test } from 'vitest';
import { firing, readRules } from '../../harness/alerts.ts';
import { RawConnection } from '../../harness/raw.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

let page = '';

beforeAll(async () => {
  const api = sharedEngine();
  // Causes the metrics that appear with their first event: a point, a refused message, a request.
  const { token } = await api.newDevice();
  expect(await api.postTelemetry(token, '{"metrics":1}')).toBe(200);
  expect(await api.postTelemetry(token, '{"metrics":')).toBe(400);
  page = await api.metricsPage();
});

/** Names of series, without the suffixes of histograms. */
function names(text: string): Set<string> {
  return new Set([...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name]) => name!));
}

function namesIn(expressions: readonly string[]): string[] {
  const found = expressions.flatMap((text) => [...text.matchAll(/\b((?:millrace|process|nodejs)_[a-z0-9_]+)/g)]);
  return [...new Set(found.map(([, name]) => name!.replace(/_bucket$/, '')))];
}

test('every name has a prefix, each family one type, and counters are named as such', () => {
  const types = [...page.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name, type]) => ({ name: name!, type: type! }));
  expect(types.length).toBeGreaterThan(80);
  expect(new Set(types.map(({ name }) => name)).size).toBe(types.length);
  expect(types.filter(({ name }) => !/^(millrace|process|nodejs)_[a-z0-9_]+$/.test(name))).toEqual([]);
  expect(types.filter(({ name, type }) => (type === 'counter') !== name.endsWith('_total'))).toEqual([]);
  // The form of the text format: a comment, or a name, labels and a number.
  const wrong = page
    .split('\n')
    .filter((line) => !/^(#.*|\w+(\{[^{}]*\})? (-?[\d.]+(e[+-]?\d+)?|\+Inf|NaN)|)$/.test(line));
  expect(wrong).toEqual([]);
});

test('the page tells version, files, disks, stores, certificates and the time until refusal', () => {
  expect(page).toMatch(/^millrace_build_info\{version="\d+\.\d+\.\d+",node="v\d+/m);
  for (const line of [
    /^process_open_fds\{process="worker-0"\} [1-9]/m,
    /^process_max_fds\{process="worker-1"\} [1-9]/m,
    /^process_start_time_seconds\{process="primary"\} 1\d{9}/m,
    /^process_cpu_seconds_total\{process="worker-0"\} /m,
    /^millrace_data_disk_free_bytes [1-9]\d{6}/m,
    /^millrace_journal_disk_free_bytes [1-9]\d{6}/m,
    /^millrace_journal_backlog_bytes_max 34359738368$/m,
    /^millrace_store_up\{store="clickhouse"\} 1$/m,
    /^millrace_store_up\{store="postgres"\} 1$/m,
    /^millrace_store_resident_memory_bytes\{store="clickhouse"\} [1-9]\d{7}/m,
    /^millrace_store_resident_memory_bytes\{store="postgres"\} [1-9]\d{6}/m,
    /^millrace_store_cpu_seconds_total\{store="postgres"\} \d/m,
    /^millrace_clickhouse_parts [1-9]/m,
    /^millrace_postgres_pool_connections_max \d\d/m,
    /^millrace_tls_certificate_days_left\{door="https"\} \d/m,
    /^millrace_tls_certificate_days_left\{door="mqtts"\} \d/m,
    /^millrace_time_until_refusal_seconds (\+Inf|\d)/m,
    /^millrace_refusing 0$/m,
  ]) {
    expect(page).toMatch(line);
  }
});

test('the page is compressed when asked for', async () => {
  const { monitorPort } = sharedEngine().address;
  const connection = await RawConnection.open(monitorPort);
  try {
    const answer = await connection.ask({ method: 'GET', path: '/metrics', headers: { 'Accept-Encoding': 'gzip' } });
    expect(answer.headers.get('content-encoding')).toBe('gzip');
    expect(gunzipSync(answer.body).toString()).toContain('millrace_build_info');
    expect(answer.body.length * 4).toBeLessThan(page.length);
    const plain = await connection.ask({
      method: 'GET',
      path: '/metrics',
      headers: { 'Accept-Encoding': 'br, gzip;q=0' },
    });
    expect(plain.headers.get('content-encoding')).toBe(undefined);
    expect(plain.body.toString()).toContain('millrace_build_info');
  } finally {
    connection.close();
  }
});

test('answer times are by group of routes, not by route', () => {
  expect(page).toMatch(/^millrace_http_request_duration_seconds_count\{group="rest"\} [1-9]/m);
  expect(page).not.toMatch(/http_request_duration_seconds_count\{route=/);
});

test('alerts and dashboards name only metrics that exist', () => {
  const dashboard = JSON.parse(readFileSync('ops/grafana/millrace.json', 'utf8')) as {
    panels: { targets?: { expr: string }[] }[];
  };
  const expressions = dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  const rules = readRules();
  expect(expressions.length).toBeGreaterThan(25);
  expect(rules.length).toBeGreaterThan(12);
  const known = names(page);
  // These appear with the first message that MQTT refuses.
  known.add('millrace_mqtt_publish_refused_total');
  // That is there with a second host: test/long/hosts.test.ts.
  known.add('millrace_hosts');
  // These are there with STREAM_URL.
  const ofStream = ['losses_total', 'damaged_total', 'servers_missing', 'bytes', 'bytes_max', 'oldest_seconds', 'away'];
  for (const name of [...ofStream, 'json_missed_total']) known.add(`millrace_stream_${name}`);
  const used = namesIn([...expressions, ...rules.map(({ expr }) => expr)]);
  expect(used.filter((name) => !known.has(name))).toEqual([]);
});

test('no alert fires on an engine that is well, but for certificates that end', () => {
  // These alerts may fire: a machine that runs tests is slow, and the certificates of this engine are valid for a few
  // days.
  const others = firing(page).filter((name) => name !== 'MillraceSlowLoop' && name !== 'MillraceBacklogOld');
  expect(others).toEqual(['MillraceCertificateEnds']);
});

/**
 * For each alert a line of the page with which it must fire, and for some alerts the line of an earlier page. Tests in
 * test/long cause the faults themselves: alerts.test.ts, clocks.test.ts, degraded.test.ts and stream.test.ts.
 */
const faults: Record<string, [line: string, earlier?: string]> = {
  MillraceUnreachable: ['up 0'],
  MillraceNotReady: ['millrace_ready 0'],
  MillraceHostSilent: ['millrace_hosts{state="silent"} 1'],
  MillraceBacklogOld: ['millrace_wal_oldest_seconds 301'],
  MillraceJournalDamaged: ['millrace_journal_degraded 1'],
  MillraceJournalWriteErrors: ['millrace_journal_write_errors_total 1', 'millrace_journal_write_errors_total 0'],
  MillraceQuarantine: ['millrace_ingest_quarantined_rows_total 5', 'millrace_ingest_quarantined_rows_total 4'],
  MillraceStreamLost: ['millrace_stream_losses_total 2', 'millrace_stream_losses_total 1'],
  MillraceNoBlocks: ['millrace_ingest_no_blocks_total 1', 'millrace_ingest_no_blocks_total 0'],
  MillraceStreamFills: ['millrace_stream_bytes{lane="live"} 7\nmillrace_stream_bytes_max{lane="live"} 10'],
  MillraceStreamJsonMissed: ['millrace_stream_json_missed_total 1', 'millrace_stream_json_missed_total 0'],
  MillraceStreamServers: ['millrace_stream_servers_missing{lane="live"} 1'],
  MillraceStreamDamaged: ['millrace_stream_damaged_total 1', 'millrace_stream_damaged_total 0'],
  MillraceSlowLoop: ['nodejs_eventloop_lag_p99_seconds{process="worker-0"} 0.3'],
  MillraceFiles: ['process_open_fds{process="worker-0"} 900\nprocess_max_fds{process="worker-0"} 1024'],
  MillraceClock: ['millrace_clock_offset_seconds -2'],
  MillraceParts: ['millrace_clickhouse_partition_parts_max 1500'],
  MillracePoolWaits: ['millrace_postgres_pool_wait_seconds_total 90', 'millrace_postgres_pool_wait_seconds_total 1'],
};

/**
 * Other tests compare these metrics with a running engine: test/long/mqtt-faults.test.ts,
 * test/flow/start-and-stop.test.ts, and those above.
 */
const provoked = [
  'MillraceRefusing',
  'MillraceRefusalNear',
  'MillraceJournalFills',
  'MillraceJournalDiskLow',
  'MillraceStoreDown',
  'MillraceWorkerRestarts',
  'MillraceCertificateEnds',
];

test.each(Object.entries(faults))('%s fires in its fault', (alert, [line, earlier]) => {
  expect(firing(`${line}\n`, `${earlier ?? line}\n`)).toEqual([alert]);
});

test('every alert has its fault', () => {
  expect(readRules().map(({ alert }) => alert)).toEqual(expect.arrayContaining([...Object.keys(faults), ...provoked]));
  expect(readRules()).toHaveLength(Object.keys(faults).length + provoked.length);
});
