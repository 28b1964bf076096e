// The content of a checkpoint as a tree. Members are loaded when they are opened, so a large state costs nothing.

import { useState } from "preact/hooks";
import { type Dict, get } from "./api";
import { route, setQuery } from "./route";
import { clean, Empty, Field, Problem, Text, useLoaded } from "./ui";

type Key = string | number;
const PAGE = 100;

export function State({ at }: { at: string }) {
  const wanted = route.value.query.get("q") ?? "";
  return (
    <>
      <div class="filters">
        <Field label="Search keys and texts">
          <input type="search" data-search value={wanted} onChange={(event) => setQuery({ q: event.currentTarget.value || null })} />
        </Field>
      </div>
      {wanted ? <Found at={at} wanted={wanted} /> : <Members at={at} keys={[]} opens={["state", "executors", "messages"]} />}
    </>
  );
}

function Found({ at, wanted }: { at: string; wanted: string }) {
  const found = useLoaded<{ found: Dict[] }>(() => get("search", { checkpoint: at, q: wanted }), [at, wanted]);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <p class="quiet">Searching…</p>;
  if (!found.value.found.length) return <Empty>Nothing in this checkpoint contains that.</Empty>;
  return (
    <ul class="tree">
      {found.value.found.map((each, place) => (
        <Member key={place} at={at} keys={each["at"]} label={each["at"].join(" › ")} of={each} />
      ))}
    </ul>
  );
}

function Members({ at, keys, opens = [] }: { at: string; keys: Key[]; opens?: string[] }) {
  const [limit, setLimit] = useState(PAGE);
  const found = useLoaded<{ value: Dict }>(() => get("value", { checkpoint: at, at: JSON.stringify(keys), limit }), [at, JSON.stringify(keys), limit]);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <p class="quiet">Loading…</p>;
  const value = found.value.value;
  if (value["kind"] === "str") return <TextValue at={at} keys={keys} value={value} />;
  const members: Dict[] = (value["members"] ?? []).filter((each: Dict) => keys.length || each["size"] !== 0);
  if (!members.length) return <p class="quiet">empty</p>;
  return (
    <>
      <ul class="tree">
        {members.map((each) => (
          <Member key={String(each["key"])} at={at} keys={[...keys, each["key"]]} label={String(each["key"])} of={each} isOpen={opens.includes(String(each["key"]))} />
        ))}
      </ul>
      {(value["size"] ?? 0) > limit && <button onClick={() => setLimit(limit + PAGE * 4)}>Show more of {value["size"].toLocaleString("en")}</button>}
    </>
  );
}

function Member({ at, keys, label, of, isOpen = false }: { at: string; keys: Key[]; label: string; of: Dict; isOpen?: boolean }) {
  const [open, setOpen] = useState(isOpen);
  const isLong = of["kind"] === "str" && (of["size"] ?? 0) > (of["preview"] ?? "").length;
  const canOpen = (of["kind"] === "object" || of["kind"] === "list" || isLong) && of["size"] !== 0;
  const kind = of["type"] ? String(of["type"]).split(":").at(-1) : of["kind"];
  const short =
    of["kind"] === "object" ? `{${of["preview"] ?? ""}}` : of["kind"] === "list" ? `${of["size"]} ${of["size"] === 1 ? "element" : "elements"}` : of["kind"] === "str" ? JSON.stringify(of["preview"]) : String(of["value"]);
  return (
    <li data-row>
      {canOpen ? (
        <button class="row" aria-expanded={open} onClick={() => setOpen(!open)}>
          <span class="twist">{open ? "▾" : "▸"}</span> <b><Text of={label} max={200} /></b> <i><Text of={kind} max={60} /></i>{" "}
          <span class="cut"><Text of={short} max={160} /></span>
        </button>
      ) : (
        <span class="row">
          <span class="twist" /> <b><Text of={label} max={200} /></b> <span class={`value is-${of["kind"]}`}>{clean(short, 300)}</span>
        </span>
      )}
      {open && canOpen && <Members at={at} keys={keys} />}
    </li>
  );
}

function TextValue({ at, keys, value }: { at: string; keys: Key[]; value: Dict }) {
  const [texts, setTexts] = useState<string[]>([value["text"]]);
  const length = texts.join("").length;
  const more = () => void get("value", { checkpoint: at, at: JSON.stringify(keys), from: length }).then((found) => setTexts([...texts, found.value.text]));
  return (
    <>
      <pre class="raw" tabIndex={0}>
        <Text of={texts.join("")} max={200_000} />
      </pre>
      {length < value["size"] && length < 200_000 && <button onClick={more}>Show more of {value["size"].toLocaleString("en")} characters</button>}
    </>
  );
}
