/** A user of the analytics component: saves views and requests reports, over HTTP with kept connections. */
import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../../../test/harness/engine.ts';
import { Histogram, summaryOf } from '../histogram.ts';

/** The range of a view. */
interface ReportRange {
  startTs: number;
  endTs: number;
  timeZone: string;
}

export class ReportClient {
  readonly #engine: Engine;
  readonly #agent = new Agent({ keepAlive: true });

  constructor(engine: Engine) {
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
  async crowd(viewConfigId: string, clients: number, seconds: number) {
    const histogram = new Histogram();
    let [made, refused] = [0, 0];
    const startedAt = performance.now();
    const client = async (): Promise<void> => {
      while (performance.now() - startedAt < seconds * 1000) {
        const askedAt = performance.now();
        const { status } = await this.report(viewConfigId);
        if (status === 200) {
          made += 1;
          histogram.record((performance.now() - askedAt) * 1000);
        } else if (status === 429) {
          refused += 1;
          await sleep(200);
        } else throw new Error(`a report was answered ${status}`);
      }
    };
    await Promise.all(Array.from({ length: clients }, client));
    const elapsed = (performance.now() - startedAt) / 1000;
    return { perSecond: made / elapsed, refusedShare: refused / (made + refused), ...summaryOf(histogram) };
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
    });
    asked.end(JSON.stringify(body));
    const [response] = (await once(asked, 'response')) as [IncomingMessage];
    response.setEncoding('latin1');
    let text = '';
    for await (const piece of response) text += piece;
    return { status: response.statusCode ?? 0, text };
  }
}
