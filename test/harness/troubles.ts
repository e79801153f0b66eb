/** The records of devices with trouble, as a worker makes them. */
import type { Clock } from '../../src/base/clock.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { FirstRecords } from '../../src/diagnostics/first-records.ts';
import { OddTimesOfDevices } from '../../src/diagnostics/odd-times.ts';
import { Troubles } from '../../src/diagnostics/troubles.ts';

export function newTroubles(clock: Clock, metrics = new Metrics()): Troubles {
  const first = new FirstRecords({ clock, metrics });
  const oddTimes = new OddTimesOfDevices({ clock, metrics, first });
  return new Troubles({ clock, metrics, first, oddTimes });
}
