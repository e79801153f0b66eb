/** A short crash run in every test run; `test/long/crash.test.ts` and `npm run bench -- crash` are longer ones. */
import { testCrashRun } from './crash-test.ts';

testCrashRun(
  'no acknowledged point is lost, repeated, out of order or restored, after any kill, stop or lack of resources',
  {
    timeout: 300_000,
    options: {
      seed: 12,
      seconds: 10,
      acknowledgedMin: 300,
      faultsMin: 3,
      turnsMin: 50,
      deletesMin: 2,
      progressMin: 30,
      devices: 8,
      sockets: 12,
      rate: 100,
      mqttRate: 100,
      lateRate: 1,
      turnDevices: 1,
      turnRate: 100,
      doomed: 2,
      workers: 2,
      faults: {
        'kill worker': 4,
        'kill clickhouse': 2,
        'kill postgres': 1,
        'stop worker': 1,
        'stop clickhouse': 1,
        'other workers': 1,
        'disk full': 1,
      },
      holdMsMax: 1_200,
      settleSeconds: 60,
    },
  },
);
