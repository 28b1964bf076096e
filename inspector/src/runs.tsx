// The list of runs: filters in the address, counts by status, pages, and actions on several runs.

import { useState } from "preact/hooks";
import { get, post, type Run } from "./api";
import { link, route, setQuery } from "./route";
import { ago, clean, Confirm, Empty, Field, Problem, Status, Text, Time, useLoaded } from "./ui";

const STATUSES = ["running", "waiting", "sleeping", "idle", "failed", "blocked", "quarantined", "cancelled", "exported"];
const PAGE = 50;
const REFRESH = 2_000;
const FILTERS = ["workflow", "tag", "error", "since"] as const;

function params(query: URLSearchParams) {
  return {
    status: query.getAll("status").flatMap((each) => each.split(",")),
    workflow: query.get("workflow"),
    tag: (query.get("tag") ?? "").split(/[\s,]+/).filter(Boolean),
    error: query.get("error"),
    since: query.get("since"),
  };
}

interface Page {
  runs: Run[];
  next: string | null;
}

export function Runs({ readOnly }: { readOnly: boolean }) {
  const query = route.value.query;
  const chosen = params(query);
  const order = query.get("order") ?? "updated";
  const key = query.toString();
  const [pages, setPages] = useState<{ key: string; more: Page[] }>({ key, more: [] });
  const more = pages.key === key ? pages.more : [];
  const [marked, setMarked] = useState<Set<string>>(new Set());
  const first = useLoaded<Page>(() => get("runs", { ...chosen, order, limit: PAGE }), [key], REFRESH);
  const counts = useLoaded<{ counts: Record<string, number> }>(
    () => get("counts", { ...chosen, status: null }),
    [key],
    REFRESH * 2,
  );
  const runs = [...(first.value?.runs ?? []), ...more.flatMap((page) => page.runs)];
  const shown = [...new Map(runs.map((run) => [run.run_id, run])).values()];
  const next = more.length ? more.at(-1)!.next : first.value?.next;
  const [error, setError] = useState<unknown>(null);
  const toggleStatus = (status: string) => {
    const now = new Set(chosen.status);
    if (!now.delete(status)) now.add(status);
    setQuery({ status: [...now].join(",") || null });
  };
  const loadMore = () =>
    get("runs", { ...chosen, order, limit: PAGE, after: next ?? null }).then(
      (page) => setPages({ key, more: [...more, page] }),
      setError,
    );
  return (
    <>
      <h1 class="hidden">Runs</h1>
      <div class="chips" role="group" aria-label="Statuses">
        {STATUSES.map((status) => {
          const count = counts.value?.counts[status] ?? 0;
          const isOn = chosen.status.includes(status);
          if (!count && !isOn) return null;
          return (
            <button key={status} class={`chip is-${status}`} aria-pressed={isOn} onClick={() => toggleStatus(status)}>
              {status} <b>{count.toLocaleString("en")}</b>
            </button>
          );
        })}
      </div>
      <div class="filters">
        {FILTERS.map((name) => (
          <Field label={{ workflow: "Workflow", tag: "Tags (name=value)", error: "Error contains", since: "Created since" }[name]} key={name}>
            <input
              type={(name === "since" ? "datetime-local" : "search") as "search"}
              value={query.get(name) ?? ""}
              data-search={name === "workflow" ? "" : undefined}
              onChange={(event) => setQuery({ [name]: event.currentTarget.value || null })}
            />
          </Field>
        ))}
        <Field label="Order">
          <select value={order} onChange={(event) => setQuery({ order: event.currentTarget.value })}>
            <option value="updated">last updated first</option>
            <option value="newest">newest first</option>
            <option value="oldest">oldest first</option>
          </select>
        </Field>
      </div>
      <Problem error={error ?? first.error ?? counts.error} />
      {!readOnly && marked.size > 0 && (
        <Bulk runs={shown.filter((run) => marked.has(run.run_id))} onDone={() => (setMarked(new Set()), first.reload())} />
      )}
      {first.value === null && !first.error ? (
        <p class="quiet">Loading…</p>
      ) : shown.length === 0 ? (
        <Empty>
          {key ? (
            <>
              No run fits these filters. <a href="#/runs">Show all runs</a>.
            </>
          ) : (
            "There are no runs in this store yet. They appear here as soon as a program starts one."
          )}
        </Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Runs">
          <table>
            <thead>
              <tr>
                {!readOnly && (
                  <th>
                    <input
                      type="checkbox"
                      aria-label="Mark all shown runs"
                      checked={marked.size > 0 && marked.size === shown.length}
                      onChange={(event) => setMarked(new Set(event.currentTarget.checked ? shown.map((run) => run.run_id) : []))}
                    />
                  </th>
                )}
                {["Run", "Status", "Workflow", "Updated", "Supersteps", "Tags", "Error"].map((name) => (
                  <th key={name}>{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((run) => (
                <tr key={run.run_id} data-row>
                  {!readOnly && (
                    <td>
                      <input
                        type="checkbox"
                        aria-label={`Mark run ${run.run_id}`}
                        checked={marked.has(run.run_id)}
                        onChange={() => {
                          const now = new Set(marked);
                          if (!now.delete(run.run_id)) now.add(run.run_id);
                          setMarked(now);
                        }}
                      />
                    </td>
                  )}
                  <td>
                    <a href={link(["run", run.run_id])} class="id" title={clean(run.run_id, 300)}>
                      <Text of={run.run_id} max={80} />
                    </a>
                  </td>
                  <td>
                    <Status of={run.status} />
                  </td>
                  <td class="short">
                    <Text of={run.workflow_name} max={40} />
                  </td>
                  <td class="short" title={run.updated_at ?? ""}>{ago(run.updated_at)} ago</td>
                  <td class="number">{run.supersteps}</td>
                  <td>
                    <Tags of={run.tags} />
                  </td>
                  <td class="error">
                    <Text of={run.error ?? ""} max={140} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {next && <button onClick={loadMore}>Show more</button>}
    </>
  );
}

export function Tags({ of }: { of: Record<string, string> }) {
  return (
    <>
      {Object.entries(of).map(([name, value]) => (
        <a class="tag" key={name} href={link(["runs"], { tag: `${name}=${value}` })}>
          <Text of={`${name}=${value}`} max={60} />
        </a>
      ))}
    </>
  );
}

type Act = "cancel" | "recover" | "delete";

function Bulk({ runs, onDone }: { runs: Run[]; onDone: () => void }) {
  const [act, setAct] = useState<Act | null>(null);
  const [report, setReport] = useState<string[]>([]);
  const perform = async (chosen: Act) => {
    const failed: string[] = [];
    for (const run of runs) {
      try {
        await post(chosen, { run: run.run_id });
      } catch (error) {
        failed.push(`${run.run_id}: ${error instanceof Error ? error.message : error}`);
      }
    }
    setReport(failed);
    if (!failed.length) onDone();
  };
  return (
    <div class="bulk">
      <span>{runs.length} marked</span>
      {(["cancel", "recover", "delete"] as const).map((each) => (
        <button key={each} class={each === "delete" ? "danger" : ""} onClick={() => setAct(each)}>
          {each[0]?.toUpperCase() + each.slice(1)}
        </button>
      ))}
      {report.map((text) => (
        <Problem key={text} error={text} />
      ))}
      {act && (
        <Confirm
          title={`${act[0]?.toUpperCase() + act.slice(1)} ${runs.length} ${runs.length === 1 ? "run" : "runs"}?`}
          action={act[0]?.toUpperCase() + act.slice(1)}
          onDone={(isSure) => {
            setAct(null);
            if (isSure) void perform(act);
          }}
        >
          <ul>
            {runs.slice(0, 12).map((run) => (
              <li key={run.run_id}>
                <Text of={run.run_id} max={80} /> <Status of={run.status} /> <Time at={run.updated_at} />
              </li>
            ))}
            {runs.length > 12 && <li>and {runs.length - 12} more</li>}
          </ul>
        </Confirm>
      )}
    </div>
  );
}
