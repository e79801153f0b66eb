/**
 * A user of the analytics component: saves views and requests reports, over HTTP with kept connections. A client of the
 * crowd counts a connection that is refused or breaks, and asks again.
 */
import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../../../test/harness/engine.ts';
import { Histogram, type LatencySummary, summaryOf } from '../histogram.ts';

/** The range of a view. */
interface ReportRange {
  startTs: number;
  endTs: number;
  timeZone: string;
}

interface Crowd extends LatencySummary {
  perSecond: number;
  /** Share of the answers that were 429. */
  refusedShare: number;
  /** Connections that were refused or broke, and other answers, by their reason. */
  failed: Record<string, number>;
}

const refusedMs = 200;
const answerMsMax = 120_000;

export class ReportClient {
  readonly #engine: Pick<Engine, 'analyticsPort' | 'api'>;
  readonly #agent = new Agent({ keepAlive: true });

  constructor(engine: Pick<Engine, 'analyticsPort' | 'api'>) {
    this.#engine = engine;
  }

  /** Returns the id of the view. */
  async saveView(fields: object[], { startTs, endTs, timeZone }: ReportRange, scope: object = {}): Promise<string> {
    const timeRange = { type: 'FIXED', startTs, endTs };
    const body = { name: 'bench', fields, scope, timeRange, timeZone };
    const { status, text } = await this.#post('/apiAnalytics/view', body);
    if (status !== 200) throw new Error(`view: ${status} ${text}`);
    return (JSON.parse(text) as { id: string }).id;
  }

  report(viewConfigId: string): Promise<{ status: number; text: string }> {
    return this.#post('/apiAnalytics/publicApi/buildReport', { viewConfigId });
  }

  /** Runs clients that each send the next request after an answer; after a refusal a client first waits a little. */
  async crowd(viewConfigId: string, clients: number, seconds: number): Promise<Crowd> {
    const histogram = new Histogram();
    const failed: Record<string, number> = {};
    let [made, refused] = [0, 0];
    const startedAt = performance.now();
    const client = async (): Promise<void> => {
      while (performance.now() - startedAt < seconds * 1000) {
        const askedAt = performance.now();
        const outcome = await this.report(viewConfigId).then(
          ({ status }) => (status === 200 || status === 429 ? status : `status ${status}`),
          ({ code, message }: NodeJS.ErrnoException) => code ?? message,
        );
        if (outcome === 200) {
          made += 1;
          histogram.record((performance.now() - askedAt) * 1000);
          continue;
        }
        if (outcome === 429) refused += 1;
        else failed[outcome] = (failed[outcome] ?? 0) + 1;
        await sleep(refusedMs);
      }
    };
    await Promise.all(Array.from({ length: clients }, client));
    const elapsed = (performance.now() - startedAt) / 1000;
    const refusedShare = refused / Math.max(1, made + refused);
    return { perSecond: made / elapsed, refusedShare, failed, ...summaryOf(histogram) };
  }

  /** Returns the p99 of the event loop lag of the analytics process since the last call. */
  async lagMs(): Promise<number> {
    const text = await this.#engine.api.metrics();
    const found = /^nodejs_eventloop_lag_p99_seconds\{process="analytics"\} (\S+)$/m.exec(text);
    return Number(found?.[1]) * 1000;
  }

  close(): void {
    this.#agent.destroy();
  }

  async #post(path: string, body: object): Promise<{ status: number; text: string }> {
    const asked = request({
      agent: this.#agent,
      host: '127.0.0.1',
      port: this.#engine.analyticsPort,
      path,
      method: 'POST',
      headers: { jwt: await this.#engine.api.adminToken(), 'content-type': 'application/json' },
      signal: AbortSignal.timeout(answerMsMax),
    });
    // A connection that breaks after the head of the answer also fails the read of its body.
    asked.on('error', () => {});
    asked.end(JSON.stringify(body));
    const [response] = (await once(asked, 'response')) as [IncomingMessage];
    response.setEncoding('latin1');
    let text = '';
    for await (const piece of response) text += piece;
    return { status: response.statusCode ?? 0, text };
  }
}
