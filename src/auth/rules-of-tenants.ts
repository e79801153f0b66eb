/**
 * The rules of each tenant: those of its profile, or those of the settings where no profile sets rules. `RateLimits`
 * and `RequestLimits` each have one.
 */

interface RuledProfile {
  id: string;
  tenantIds: string[];
}

export class RulesOfTenants<Rules extends { readonly key: string }> {
  readonly ofSettings: Rules;
  #ofTenants: ReadonlyMap<string, Rules> = new Map();
  /** Profile id → rules. */
  #ofProfiles: ReadonlyMap<string, Rules> = new Map();

  constructor(ofSettings: Rules) {
    this.ofSettings = ofSettings;
  }

  of(tenantId: string): Rules {
    return this.#ofTenants.get(tenantId) ?? this.ofSettings;
  }

  /** Returns the rules of a profile, '' = of the settings; undefined for a profile without rules. */
  ofProfile(profileId: string): Rules | undefined {
    return profileId === '' ? this.ofSettings : this.#ofProfiles.get(profileId);
  }

  all(): Rules[] {
    return [this.ofSettings, ...this.#ofProfiles.values()];
  }

  /**
   * Gives rules to the tenants of these profiles, and to no others. `plan` returns the key of a profile's rules, and
   * makes them: known rules with the same key are kept.
   */
  use<Profile extends RuledProfile>(
    profiles: readonly Profile[],
    plan: (profile: Profile) => { key: string; make: () => Rules },
  ): void {
    const ofProfiles = new Map<string, Rules>();
    const ofTenants = new Map<string, Rules>();
    for (const profile of profiles) {
      const { key, make } = plan(profile);
      const known = this.#ofProfiles.get(profile.id);
      const rules = known?.key === key ? known : make();
      ofProfiles.set(profile.id, rules);
      for (const tenantId of profile.tenantIds) ofTenants.set(tenantId, rules);
    }
    this.#ofProfiles = ofProfiles;
    this.#ofTenants = ofTenants;
  }
}
