/** Connects to a target once, so that a wrong address ends the command before it waits out a load. */
import { causeOf } from '../error-sentence.ts';
import { openSocket } from '../load/open-socket.ts';
import { UsageError } from '../settings.ts';
import type { TargetOrder } from './order.ts';
import { isOwnAddress } from './server.ts';

const reachMsMax = 10_000;

/** OpenSSL's codes for a certificate that no trusted issuer has signed. */
const untrusted = [
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
];

/** Returns true when the server has an address of this machine. */
export async function reach({ server, tls }: Pick<TargetOrder, 'server' | 'tls'>): Promise<boolean> {
  const { host, port, authority, isTls } = server;
  try {
    return await new Promise<boolean>((resolve, reject) => {
      const socket = openSocket({ host, port, tls: isTls ? tls : undefined }, undefined, () => {
        resolve(isOwnAddress(socket.remoteAddress ?? ''));
        socket.destroy();
      });
      socket.setTimeout(reachMsMax, () => socket.destroy(new Error(`no connection within ${reachMsMax / 1000} s`)));
      socket.on('error', reject);
      socket.on('close', () => reject(new Error('the server closes the connection')));
    });
  } catch (error) {
    throw new UsageError(sentenceFor(authority, error as NodeJS.ErrnoException, isTls));
  }
}

function sentenceFor(authority: string, error: NodeJS.ErrnoException, isTls: boolean): string {
  const { code = '' } = error;
  const cause = causeOf(error);
  if (untrusted.includes(code))
    return `The certificate of ${authority} is not trusted: ${cause}. Give --ca FILE with that of its issuer, or --insecure.`;
  if (code.startsWith('ERR_TLS_CERT') || code.startsWith('CERT_'))
    return `The certificate of ${authority} is not valid for it: ${cause}. --insecure accepts any certificate.`;
  const isPlain = code === 'EPROTO' || code.startsWith('ERR_SSL') || cause === 'the server closes the connection';
  if (isTls && isPlain) return `${authority} does not answer a TLS handshake: ${cause}. Is it a port without TLS?`;
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN')
    return `${authority} is not found: its name has no address (${cause}).`;
  return `${authority} does not answer: ${cause}.`;
}
