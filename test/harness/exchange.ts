/** The exchange of shared counts of a worker without company, and of the workers of one bus. */
import type { Bus } from '../../src/bus/bus.ts';
import { HomeExchange } from '../../src/bus/home-exchange.ts';
import { deafBus } from './deaf-bus.ts';

export function aloneExchange(): HomeExchange {
  return new HomeExchange({ bus: deafBus, fleet: { workers: () => 1, isHome: () => true } });
}

/** Returns the exchange of one of several workers. Not started. */
export function exchangeOf(bus: Bus, workers: number, isHome: boolean): HomeExchange {
  return new HomeExchange({ bus, fleet: { workers: () => workers, isHome: () => isHome } });
}
