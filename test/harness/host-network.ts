/**
 * Hosts in network namespaces, each with an address and a cable of its own, on one bridge. The stores of `startStores`
 * listen on loopback: a relay in this process gives each of them an address on the bridge, so that a host can lose the
 * way to one store. A packet that has no way vanishes, as behind a pulled cable or a firewall, without an error. Needs
 * root and `ip` of iproute2.
 */
import { execFile, execFileSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { promisify } from 'node:util';

export const mayMakeNetworks = process.getuid?.() === 0;

/** Runs in a namespace: sends one HTTP request and prints its status and body. */
const asker = `
const [, url, method, body] = process.argv;
const signal = AbortSignal.timeout(20000);
const answer = await fetch(url, { method, signal, ...(body && { body }) });
process.stdout.write(JSON.stringify({ status: answer.status, text: await answer.text() }));
`;

/** The place at which an engine of the harness runs. */
export interface Place {
  namespace: string;
  address: string;
}

export class HostNetwork {
  readonly #name = `mr${randomInt(36 ** 4, 36 ** 5).toString(36)}`;
  /** The first three bytes of all addresses: of a network that is reserved for tests. */
  readonly #prefix = `198.${randomInt(18, 20)}.${randomInt(256)}`;
  readonly #places: Place[] = [];
  readonly #relays: Server[] = [];
  readonly #sockets = new Set<Socket>();
  readonly #undo: string[][] = [];

  static open(hosts: number): HostNetwork {
    const network = new HostNetwork();
    try {
      network.#make(hosts);
    } catch (error) {
      network.#remove();
      throw error;
    }
    return network;
  }

  place(host: number): Place {
    return this.#places[host]!;
  }

  /** Gives the server on this loopback port an address on the bridge. Returns that address. */
  async relay(port: number): Promise<string> {
    const address = `${this.#prefix}.${200 + this.#relays.length}`;
    ip('address', 'add', `${address}/32`, 'dev', this.#name);
    const relay = createServer((inside) => {
      const outside = connect({ port, host: '127.0.0.1', noDelay: true });
      inside.setNoDelay(true);
      for (const [socket, other] of [
        [inside, outside],
        [outside, inside],
      ] as const) {
        this.#sockets.add(socket);
        socket.on('error', () => other.destroy());
        socket.on('close', () => {
          this.#sockets.delete(socket);
          other.destroy();
        });
        socket.pipe(other);
      }
    });
    this.#relays.push(relay);
    relay.listen(port, address);
    await once(relay, 'listening');
    return address;
  }

  /** Pulls the cable of a host. */
  cut(host: number): void {
    this.#change(['link', 'set', this.#cable(host), 'down'], ['link', 'set', this.#cable(host), 'up']);
  }

  /** Packets from this host to an address vanish. */
  lose(host: number, address: string): void {
    const route = ['blackhole', `${address}/32`];
    const inside = ['-n', this.place(host).namespace, 'route'];
    this.#change([...inside, 'add', ...route], [...inside, 'del', ...route]);
  }

  /** Ends all that `cut` and `lose` did. */
  restore(): void {
    for (const undo of this.#undo.splice(0)) ip(...undo);
  }

  /** Sends an HTTP request from within the namespace of the host, which needs no cable. */
  async askInside(host: number, port: number, method: string, path: string, body = ''): Promise<Answer> {
    const url = `http://${this.place(host).address}:${port}${path}`;
    const node = [process.execPath, '--input-type=module', '-e', asker, '--', url, method, body];
    const { stdout } = await promisify(execFile)('ip', ['netns', 'exec', this.place(host).namespace, ...node]);
    return JSON.parse(stdout) as Answer;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await Promise.all(this.#relays.map((relay) => new Promise((resolve) => relay.close(resolve))));
    this.#remove();
  }

  #change(words: string[], undo: string[]): void {
    ip(...words);
    this.#undo.push(undo);
  }

  #cable(host: number): string {
    return `${this.#name}c${host}`;
  }

  #make(hosts: number): void {
    ip('link', 'add', this.#name, 'type', 'bridge');
    ip('address', 'add', `${this.#prefix}.254/24`, 'dev', this.#name);
    ip('link', 'set', this.#name, 'up');
    for (let host = 0; host < hosts; host += 1) {
      const place = { namespace: `${this.#name}h${host}`, address: `${this.#prefix}.${host + 1}` };
      this.#places.push(place);
      ip('netns', 'add', place.namespace);
      ip('link', 'add', this.#cable(host), 'type', 'veth', 'peer', 'name', 'eth0', 'netns', place.namespace);
      ip('link', 'set', this.#cable(host), 'master', this.#name, 'up');
      ip('-n', place.namespace, 'address', 'add', `${place.address}/24`, 'dev', 'eth0');
      ip('-n', place.namespace, 'link', 'set', 'eth0', 'up');
      ip('-n', place.namespace, 'link', 'set', 'lo', 'up');
    }
  }

  #remove(): void {
    const remove = (...words: string[]) => {
      try {
        ip(...words);
      } catch {
        // The part was not made.
      }
    };
    for (const { namespace } of this.#places) remove('netns', 'del', namespace);
    remove('link', 'del', this.#name);
  }
}

interface Answer {
  status: number;
  text: string;
}

function ip(...words: string[]): void {
  execFileSync('ip', words, { stdio: ['ignore', 'ignore', 'pipe'] });
}
