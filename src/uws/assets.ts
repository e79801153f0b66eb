/**
 * Serves the files of a page; only named files. Each file is read at its first request and kept as it is sent, plain
 * and compressed. The ETag is a digest of the content, so a reload costs a 304.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Answer } from './exchange.ts';
import { inSlices } from './slices.ts';

const compress = promisify(gzip);

/** The part of a request that an asset needs. */
interface AssetRequest {
  path: string;
  header(name: string): string;
}

interface Kept {
  body: Buffer;
  etag: string;
}

const contentTypes: Record<string, string> = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

/** URL of a file, or its content. */
export type AssetSource = URL | string;

export class Assets {
  readonly #sources: Map<string, AssetSource>;
  readonly #headers: Record<string, string>;
  readonly #kept = new Map<string, Promise<Kept>>();

  /** Files by name, whose extension gives the content type. `headers` are sent with every answer. */
  constructor(sources: Record<string, AssetSource>, headers: Record<string, string>) {
    this.#sources = new Map(Object.entries(sources));
    this.#headers = { ...headers, 'Cache-Control': 'no-cache' };
  }

  /** Throws the 404 of unknown paths for an unknown name. */
  async answer(name: string, request: AssetRequest): Promise<Answer> {
    const source = this.#sources.get(name);
    if (source === undefined) throw new Fault('unknown_path', `No such path: ${request.path.slice(0, 200)}`);
    const compressed = takesGzip(request.header('accept-encoding'));
    const { body, etag } = await this.#keep(name, source, compressed);
    const headers: Record<string, string> = { ...this.#headers, ETag: etag, Vary: 'Accept-Encoding' };
    if (isKnown(request.header('if-none-match'), etag)) return { status: 304, headers };
    if (compressed) headers['Content-Encoding'] = 'gzip';
    const contentType = contentTypes[name.slice(name.lastIndexOf('.') + 1)]!;
    // A slow reader holds one slice, and no copy of the file.
    return { status: 200, contentType, headers, body: body.length > limits.assetSliceBytes ? inSlices(body) : body };
  }

  #keep(name: string, source: AssetSource, compressed: boolean): Promise<Kept> {
    const key = compressed ? `${name} gzip` : name;
    let kept = this.#kept.get(key);
    if (!kept) {
      kept = load(source, compressed);
      // Reading may have failed for a moment, for example without free file descriptors.
      kept.catch(() => this.#kept.delete(key));
      this.#kept.set(key, kept);
    }
    return kept;
  }
}

async function load(source: AssetSource, compressed: boolean): Promise<Kept> {
  const plain = typeof source === 'string' ? Buffer.from(source) : await readFile(source);
  const hash = createHash('sha256').update(plain).digest('base64url').slice(0, 22);
  // Compresses on the thread pool: a large file must not block the event loop.
  return compressed ? { body: await compress(plain), etag: `"${hash}-gzip"` } : { body: plain, etag: `"${hash}"` };
}

function takesGzip(acceptEncoding: string): boolean {
  return acceptEncoding.split(',').some((each) => /^\s*gzip\s*(;|$)/i.test(each) && !/;\s*q=0(\.0*)?\s*$/i.test(each));
}

function isKnown(ifNoneMatch: string, etag: string): boolean {
  return ifNoneMatch.split(',').some((each) => {
    const tag = each.trim().replace(/^W\//, '');
    return tag === etag || tag === '*';
  });
}
