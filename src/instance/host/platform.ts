/** Checks whether this machine can run Millrace, as the first step of a start, and refuses in one line. */
import { StartError } from '../../base/errors.ts';
import { fileLimitFault } from '../../base/file-limit.ts';

const oldest: Record<number, number> = { 20: 19, 22: 12 };

export function checkPlatform(): void {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const supported = major >= 24 || (oldest[major] !== undefined && minor >= oldest[major]);
  if (!supported) {
    throw new StartError(`Node ${process.version} is not supported: use Node 20.19, 22.12 or a newer even version.`);
  }
  if (process.platform !== 'linux') {
    throw new StartError(`Millrace runs on Linux; this is ${process.platform}. Use the Docker image there.`);
  }
  // With the network section, the report would look up names of its own sockets.
  Object.assign(process.report, { excludeNetwork: true });
  const { header } = process.report.getReport() as unknown as { header: { glibcVersionRuntime?: string } };
  if (!header.glibcVersionRuntime) {
    throw new StartError('Millrace needs a Linux with glibc (Debian, Ubuntu, Fedora, …); this one has another libc.');
  }
}

/** Called before the other modules are loaded, which takes more files than a very low limit allows. */
export function checkFileLimit(): void {
  const fault = fileLimitFault();
  if (fault !== undefined) throw new StartError(fault);
}
