/**
 * The days that are partitions of `telemetry`: those of the years 2020 to 2039, as the definition of the table says.
 * All other rows share one partition.
 */
export const firstDayMs: number = Date.UTC(2020, 0, 1);
export const daysEndMs: number = Date.UTC(2040, 0, 1);
