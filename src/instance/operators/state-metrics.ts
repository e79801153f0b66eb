/** Metrics of the state that the primary publishes: the stores, readiness, and refusals now and ahead. */
import type { Metrics } from '../../base/metrics/metrics.ts';
import type { RefusalForecast } from '../health/refusal-forecast.ts';
import type { WorkerRefusals } from '../health/refusal-watch.ts';
import type { WorkerPool } from '../processes/worker-pool.ts';
import type { StoreWatch, WatchedStore } from '../stores/store-watch.ts';

export function observeStores(metrics: Metrics, watch: StoreWatch): void {
  for (const store of Object.keys(watch.parts) as WatchedStore['name'][]) {
    const help = '1 = the store answers this host, 0 = not.';
    metrics.observed('store_up', help, () => watch.up(store), 'max', { store });
  }
}

export function observePool(metrics: Metrics, pool: WorkerPool, forecast: RefusalForecast): void {
  const forecastHelp =
    'Time until telemetry would be refused if ClickHouse took nothing from now on, at the rate of the last 5 minutes.';
  metrics.observed('time_until_refusal_seconds', forecastHelp, () => (pool.refusal ? 0 : forecast.seconds), 'max');
  const refusingHelp = 'Workers of this host that refuse telemetry of every sender now.';
  const isRefusing = ({ refusal }: WorkerRefusals) => refusal !== undefined;
  metrics.observed('refusing', refusingHelp, () => pool.refusals.filter(isRefusing).length);
  metrics.observed('ready', '1 while /readyz has the status ready.', () => Number(pool.state.status === 'ready'));
}
