// Addresses behind the number sign, so that every view has a link: #/runs?status=failed, #/run/order-1/state?at=...

import { signal } from "@preact/signals";

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

function parse(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const route = signal<Route>(parse());

/** Read the address again, after it was changed without an event. */
export function refresh(): void {
  route.value = parse();
}

addEventListener("hashchange", refresh);

export function link(parts: string[], query: Record<string, string | null | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value) search.set(key, value);
  const text = search.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(to: string): void {
  location.hash = to.slice(1);
}

/** Change the query of the present view without adding to the history. */
export function setQuery(changes: Record<string, string | null>): void {
  const query = new URLSearchParams(route.value.query);
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  const path = route.value.parts.map(encodeURIComponent).join("/");
  history.replaceState(null, "", `#/${path}${text ? `?${text}` : ""}`);
  refresh();
}
