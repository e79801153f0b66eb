/** Every grouping of a report, with every aggregation of two keys and a pivot, on a new draw each time. */
process.env['REPORT_RUNS'] ??= '1';
await import('../../src/report/plan.test.ts');
