/** A bus that delivers nothing, for objects that are tested alone. */
import type { Bus } from '../../src/bus/bus.ts';

export const deafBus: Bus = {
  publish() {},
  subscribe: async () => () => {},
  onReconnect() {},
  connected: true,
  close: async () => {},
};
