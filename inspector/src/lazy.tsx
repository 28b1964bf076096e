// Load a part of the program when it is first shown.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem } from "./ui";

export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let known: ComponentType<P> | null = null;
  return function Lazy(props: P) {
    const [Found, setFound] = useState<ComponentType<P> | null>(() => known);
    const [error, setError] = useState<unknown>(null);
    useEffect(() => {
      if (!known) load().then((found) => ((known = found), setFound(() => found)), setError);
    }, []);
    if (error) return <Problem error={error} />;
    return Found ? <Found {...props} /> : <p class="quiet">Loading…</p>;
  };
}
