// The numbered events of a run, newest first, in pages, and live.

import { useEffect, useState } from "preact/hooks";
import { get, type Run, type RunEvent } from "./api";
import { route, setQuery } from "./route";
import { Empty, Field, Problem, Raw, Text, Time } from "./ui";

const PAGE = 200;

/** Load the newest events, and earlier ones on demand. */
export function useEvents(run: Run, news: number, page = PAGE) {
  const [events, setEvents] = useState<RunEvent[]>([]);
  const [error, setError] = useState<unknown>(null);
  const load = (from: number, limit: number) =>
    get("events", { run: run.run_id, from, limit }).then((found: { events: RunEvent[] }) => {
      setEvents((known) => {
        const all = new Map([...known, ...found.events].map((event) => [event.seq, event]));
        return [...all.values()].sort((one, other) => one.seq - other.seq);
      });
    }, setError);
  useEffect(() => {
    const last = events.at(-1)?.seq;
    if (last === undefined) void load(Math.max(1, run.events - page + 1), page);
    else if (run.events > last) void load(Math.max(last + 1, run.events - page + 1), page);
  }, [run.run_id, run.events, news]);
  const first = events[0]?.seq ?? 1;
  const earlier = first > 1 ? () => void load(Math.max(1, first - page), Math.min(page, first - 1)) : null;
  return { events, error, earlier };
}

const LOUD = new Set(["failed", "executor_failed", "attempt_failed", "error", "warning", "undelivered"]);

export function summary(event: RunEvent): unknown {
  const data = event.details ?? event.data ?? event.state;
  if (data && typeof data === "object" && data.error_type) return `${data.error_type}: ${data.message}`;
  if (data && typeof data === "object" && "checkpoint_id" in data) return data.checkpoint_id;
  return data ?? "";
}

export function Events({ run, news }: { run: Run; news: number }) {
  const { events, error, earlier } = useEvents(run, news);
  const query = route.value.query;
  const executor = query.get("executor") ?? "";
  const wanted = (query.get("q") ?? "").toLowerCase();
  const shown = events
    .filter((event) => !executor || event.executor_id === executor || event.path.includes(executor))
    .filter((event) => !wanted || JSON.stringify(event).toLowerCase().includes(wanted))
    .reverse();
  return (
    <>
      <div class="filters">
        <Field label="Contains">
          <input type="search" data-search value={query.get("q") ?? ""} onInput={(event) => setQuery({ q: event.currentTarget.value || null })} />
        </Field>
        <Field label="Executor">
          <input type="search" value={executor} onInput={(event) => setQuery({ executor: event.currentTarget.value || null })} />
        </Field>
      </div>
      <Problem error={error} />
      {!shown.length && <Empty>{events.length ? "No loaded event fits." : "This run has no events."}</Empty>}
      <ol class="events" aria-live="off">
        {shown.map((event) => (
          <EventRow key={event.seq} event={event} />
        ))}
      </ol>
      {earlier && <button onClick={earlier}>Show earlier events</button>}
    </>
  );
}

function EventRow({ event }: { event: RunEvent }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <li data-row class={LOUD.has(event.type) ? "loud" : ""}>
      <button class="row" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class="number">{event.seq}</span>
        <Time at={event.at} />
        <b>
          <Text of={event.type} max={40} />
        </b>
        <span>
          <Text of={[...event.path, event.executor_id ?? ""].join("/").replace(/\/$/, "")} max={60} />
        </span>
        <span class="cut">
          <Text of={summary(event)} max={200} />
        </span>
      </button>
      {isOpen && <Raw of={event} />}
    </li>
  );
}
