/**
 * A crash run of some minutes with every fault, of one seed so that two runs of CI meet the same schedule;
 * `npm run bench -- crash` takes other seeds and durations.
 */
import { allFaults } from '../../bench/crash/faults.ts';
import { testCrashRun } from '../crash/crash-test.ts';

testCrashRun('nothing acknowledged is lost, twice, out of order, stuck or back again after minutes of faults', {
  timeout: 1_200_000,
  options: {
    seed: 5,
    seconds: 90,
    acknowledgedMin: 3_000,
    faultsMin: 10,
    turnsMin: 200,
    deletesMin: 5,
    progressMin: 30,
    devices: 16,
    sockets: 12,
    rate: 400,
    mqttRate: 400,
    lateRate: 4,
    turnDevices: 2,
    turnRate: 200,
    doomed: 2,
    workers: 2,
    faults: allFaults,
    holdMsMax: 5_000,
    settleSeconds: 120,
  },
});
