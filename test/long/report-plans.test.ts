/** Every grouping of a report, with every aggregation of two keys and a pivot, over other random points in each run. */
process.env['REPORT_RUNS'] ??= '1';
await import('../../src/report/plan.test.ts');
