// Preloaded into an engine under test: a query with `bug=now` makes an exception that no request catches.
const Real = globalThis.URLSearchParams;
globalThis.URLSearchParams = class extends Real {
  constructor(init) {
    super(init);
    if (String(init).includes('bug=now')) {
      setImmediate(() => {
        throw new Error('a bug made by a test');
      });
    }
  }
};
