// Two runs or two checkpoints side by side: the first superstep at which they differ, and how.

import { useState } from "preact/hooks";
import { type Dict, get, type Run } from "./api";
import { route, setQuery } from "./route";
import { Empty, Field, Problem, Status, Text, useLoaded } from "./ui";

interface Found {
  diff: { before: string; after: string; turn?: number | null; superstep?: number | null; count: number; changes: Dict[] };
}

export function Compare() {
  const query = route.value.query;
  const kind = query.get("kind") ?? "runs";
  const [before, setBefore] = useState(query.get("before") ?? "");
  const [after, setAfter] = useState(query.get("after") ?? "");
  const isChosen = query.get("before") && query.get("after") && query.get("before") !== query.get("after");
  return (
    <>
      <h1>Compare</h1>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          setQuery({ kind, before, after });
        }}
      >
        <Field label="Compare">
          <select value={kind} onChange={(event) => setQuery({ kind: event.currentTarget.value })}>
            <option value="runs">runs</option>
            <option value="checkpoints">checkpoints</option>
          </select>
        </Field>
        <Field label="One">
          <input data-search value={before} onInput={(event) => setBefore(event.currentTarget.value)} />
        </Field>
        <Field label="Other">
          <input value={after} onInput={(event) => setAfter(event.currentTarget.value)} />
        </Field>
        <button type="submit">Compare</button>
      </form>
      {isChosen ? (
        <Differences kind={kind} before={query.get("before")!} after={query.get("after")!} />
      ) : (
        <Empty>Give the ids of two runs, or of two checkpoints.</Empty>
      )}
    </>
  );
}

function Differences({ kind, before, after }: { kind: string; before: string; after: string }) {
  const found = useLoaded<Found>(() => get("diff", { kind, before, after }), [kind, before, after]);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <p class="quiet">Comparing…</p>;
  const { diff } = found.value;
  return (
    <>
      {kind === "runs" && <Ends before={before} after={after} />}
      {diff.superstep !== undefined && diff.superstep !== null && (
        <p>
          They differ from superstep {diff.superstep} of turn {diff.turn} on: <Text of={diff.before} /> and <Text of={diff.after} />.
        </p>
      )}
      {!diff.count ? (
        <Empty>There is no difference.</Empty>
      ) : (
        <ul class="changes">
          {diff.changes.map((change, at) => (
            <li key={at} class={`is-${change["kind"]}`}>
              <b>
                <Text of={change["path"]} max={300} />
              </b>{" "}
              <i>{change["kind"]}</i>
              {change["kind"] !== "added" && (
                <del>
                  <Text of={change["before"]} max={2000} />
                </del>
              )}
              {change["kind"] !== "removed" && (
                <ins>
                  <Text of={change["after"]} max={2000} />
                </ins>
              )}
            </li>
          ))}
        </ul>
      )}
      {diff.count > diff.changes.length && <p class="quiet">The first {diff.changes.length} of {diff.count} differences.</p>}
    </>
  );
}

function Ends({ before, after }: { before: string; after: string }) {
  const runs = useLoaded<Run[]>(() => Promise.all([before, after].map((id) => get("run", { run: id }).then((found) => found.run))), [before, after]);
  if (!runs.value) return <Problem error={runs.error} />;
  const rows: [string, (run: Run) => unknown][] = [
    ["workflow", (run) => run.workflow_name],
    ["supersteps", (run) => String(run.supersteps)],
    ["events", (run) => String(run.events)],
    ["spent", (run) => Object.entries(run.spent).map(([name, amount]) => `${amount} ${name}`).join(", ")],
    ["error", (run) => run.error ?? ""],
  ];
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Runs">
      <table>
        <thead>
          <tr>
            <th />
            {runs.value.map((run, at) => (
              <th key={at}>
                <Text of={run.run_id} max={60} /> <Status of={run.status} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              {runs.value!.map((run, at) => (
                <td key={at}>
                  <Text of={value(run)} max={200} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
