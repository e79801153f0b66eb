/** Saving, reading and deleting views (docs/rest.md#reports). */
import { entityNotFound, type TenantPrincipal } from '../auth/roles.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { createUuid, nullUuid } from '../base/uuid.ts';
import type { Postgres } from '../postgres/client.ts';
import { checkViewName, type ViewInput } from './decode-view.ts';
import { keepAttributes } from './kept-attribute-store.ts';
import { customerExists, deleteView, findView, holdView, insertView, updateView, visibleTo } from './store.ts';
import { attributesOfView, type View } from './view.ts';

interface ViewDeps {
  postgres: Postgres;
  clock: Clock;
}

/** Creates a view, or replaces the view that has its id. */
export async function saveView({ postgres, clock }: ViewDeps, tenantId: string, input: ViewInput): Promise<View> {
  checkViewName(input.name);
  const customerId = input.customerId === nullUuid ? null : input.customerId;
  if (customerId !== null && !(await customerExists(postgres, tenantId, customerId))) {
    throw badRequest('customer', "The customer of the view doesn't exist!");
  }
  const { id, name, definition } = input;
  return await postgres.transaction(async (queries) => {
    if (id === null) {
      const now = clock.now();
      const view: View = {
        id: createUuid(now),
        tenantId,
        customerId,
        name,
        version: 1,
        createdTime: now,
        ...definition,
      };
      await insertView(queries, view);
      await keepAttributes(queries, view, attributesOfView(view), now);
      return view;
    }
    const stored = await holdView(queries, tenantId, id);
    if (!stored) throw entityNotFound('View', id);
    checkVersion('View', stored.version, input.version);
    const view: View = { ...stored, customerId, name, ...definition, version: stored.version + 1 };
    await updateView(queries, view);
    await keepAttributes(queries, view, attributesOfView(view), clock.now());
    return view;
  });
}

/** Returns a view that this caller may see; otherwise throws the 404 of a missing view. */
export async function findVisibleView({ postgres }: ViewDeps, principal: TenantPrincipal, id: string): Promise<View> {
  const { tenantId, customerId } = visibleTo(principal);
  const view = await findView(postgres, tenantId, id);
  const isVisible = customerId === null || view?.customerId === null || view?.customerId === customerId;
  if (!view || !isVisible) throw entityNotFound('View', id);
  return view;
}

export async function removeView({ postgres }: ViewDeps, tenantId: string, id: string): Promise<void> {
  if (!(await deleteView(postgres, tenantId, id))) throw entityNotFound('View', id);
}
