/** The style and the icon of all pages, which each door serves at its own port. */
const file = (name: string) => new URL(`./page/${name}`, import.meta.url);

export const basePage: Record<string, URL> = { 'base.css': file('base.css'), 'icon.svg': file('icon.svg') };
