/** Counts the answers of a route, and the time to answer of its group. A route without calls is not in the metrics. */
import { type Counter, coarseBounds, type Histogram, type Metrics } from '../base/metrics/metrics.ts';
import { groupOfRoute } from './route-group.ts';

export class RouteMetrics {
  readonly #metrics: Metrics;
  readonly #route: string;
  readonly #pattern: string;
  readonly #byStatus = new Map<number, Counter>();
  #seconds: Histogram | undefined;

  constructor(metrics: Metrics, method: string, pattern: string) {
    this.#metrics = metrics;
    this.#route = `${method} ${pattern}`;
    this.#pattern = pattern;
  }

  answered(status: number, seconds: number): void {
    const route = this.#route;
    let counter = this.#byStatus.get(status);
    if (!counter) {
      const labels = { route, code: String(status) };
      counter = this.#metrics.counter('http_requests_total', 'Requests by route and status.', labels);
      this.#byStatus.set(status, counter);
    }
    counter.add(1);
    this.#seconds ??= this.#histogram();
    this.#seconds.observe(seconds);
  }

  #histogram(): Histogram {
    const group = groupOfRoute(this.#pattern);
    const help = 'Time to answer, by group of routes.';
    return this.#metrics.histogram('http_request_duration_seconds', help, { group }, coarseBounds);
  }
}
