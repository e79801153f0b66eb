/**
 * Gives property tests the same values in each run: a run that fails then tells about the code, and not about its luck.
 * FUZZ_SEED chooses others, as it does for the fuzzers.
 */
import fc from 'fast-check';

fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: Number(process.env['FUZZ_SEED'] ?? 20_261_126) });
