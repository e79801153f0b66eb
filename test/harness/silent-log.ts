/** A log that keeps nothing. */
import type { Log } from '../../src/base/log.ts';

export const silentLog: Log = { debug() {}, info() {}, warn() {}, error() {} };
