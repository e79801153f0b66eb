/** Prepares tests that start their own engines: the build, and the data with which their engines begin. */
import build from './build-setup.ts';
import { prepareData } from './engine.ts';

export default async function setup(): Promise<() => void> {
  build();
  return await prepareData();
}
