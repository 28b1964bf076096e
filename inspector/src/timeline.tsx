// A waterfall of supersteps, and what happened in each: activations, steps, calls, waits, failures, take-overs.

import { useState } from "preact/hooks";
import { type Run, type RunEvent } from "./api";
import { summary, useEvents } from "./events";
import { clean, duration, Empty, Problem, Text, Time } from "./ui";

interface Bar {
  key: string;
  label: string;
  kind: string;
  start: number;
  end: number;
  note: string;
  depth: number;
  place: string;
}

const MARKS = new Set(["failed", "taken_over", "warning", "request_info", "answered", "received", "woken", "cancelled", "undelivered", "attempt_failed", "executor_failed", "executor_suspended"]);
const TIMED = new Set(["step_completed", "model_call_completed", "tool_call_completed"]);
const SHOWN = 400;

function time(event: RunEvent): number {
  return event.at ? new Date(event.at).getTime() : 0;
}

function seconds(event: RunEvent): number {
  const found = event.data?.duration;
  return typeof found === "number" ? found : 0;
}

function noteOf(event: RunEvent): string {
  const { outcome, attempt, spent } = event.data ?? {};
  const tokens = spent?.total_tokens;
  const parts = [outcome !== "completed" && outcome, attempt > 1 && `attempt ${attempt}`, tokens && `${tokens} tokens`];
  return parts.filter(Boolean).join(", ");
}

/**
 * Turn events into bars. A commit gives all events of its superstep one time, so calls are drawn one after the other from
 * the start of the superstep: their durations are exact, their places are not if they ran at once.
 */
function barsOf(events: RunEvent[]): Bar[] {
  const bars: Bar[] = [];
  let [before, now, process] = [0, 0, ""];
  let inside: Bar[] = [];
  for (const event of events) {
    const at = time(event);
    if (at !== now) [before, now] = [now || at, at];
    if (event.type === "superstep_started" && !event.path.length) {
      bars.push(...inside);
      inside = [];
    }
    const place = [...event.path, event.executor_id ?? ""].filter(Boolean).join("/");
    const bar = { key: String(event.seq), kind: event.type, label: place, place, start: at, end: at, note: "", depth: event.path.length + 1 };
    const lasted = seconds(event) * 1000;
    if (event.type === "superstep_completed" && !event.path.length) {
      const start = lasted ? at - lasted : before;
      const by = clean(event.data?.process ?? "", 80);
      const label = `superstep ${event.superstep ?? ""}`;
      bars.push({ ...bar, kind: "superstep", label, start, note: by !== process ? by : "", depth: 0 }, ...arranged(inside, start, at));
      process = by;
      inside = [];
    } else if (TIMED.has(event.type)) {
      const name = event.data?.model ?? event.data?.name ?? event.type;
      inside.push({ ...bar, label: `${place} · ${name}`, start: at - lasted, note: noteOf(event), depth: bar.depth + 1 });
    } else if (event.type === "executor_completed" || event.type === "executor_bypassed") {
      // Its calls come before it in the log, and below it here.
      const first = inside.findIndex((each) => each.place === place && TIMED.has(each.kind));
      const done = { ...bar, start: before, note: event.type === "executor_bypassed" ? "recorded by an earlier attempt" : "" };
      inside.splice(first < 0 ? inside.length : first, 0, done);
    } else if (MARKS.has(event.type)) {
      const mark = { ...bar, label: place ? `${event.type} · ${place}` : event.type, note: clean(summary(event) ?? "", 120) };
      inside.push(mark);
    }
  }
  return [...bars, ...inside];
}

function arranged(bars: Bar[], start: number, end: number): Bar[] {
  const reached = new Map<string, number>();
  return bars.map((bar) => {
    if (!TIMED.has(bar.kind)) return bar.end > bar.start ? { ...bar, start: Math.max(bar.start, start) } : bar;
    const from = reached.get(bar.place) ?? start;
    const to = Math.min(from + bar.end - bar.start, end);
    reached.set(bar.place, to);
    return { ...bar, start: from, end: to };
  });
}

export function Timeline({ run, news }: { run: Run; news: number }) {
  const { events, error, earlier } = useEvents(run, news, 500);
  const [zoom, setZoom] = useState(1);
  const bars = barsOf(events).slice(-SHOWN);
  if (!bars.length) return <>{error ? <Problem error={error} /> : <Empty>Nothing was committed yet.</Empty>}</>;
  const start = Math.min(...bars.map((bar) => bar.start));
  const span = Math.max(Math.max(...bars.map((bar) => bar.end)) - start, 1);
  const part = (value: number) => `${(100 * value) / span}%`;
  return (
    <>
      <Problem error={error} />
      <p class="facts">
        <span>
          from <Time at={new Date(start).toISOString()} />
        </span>
        <span>{duration(span / 1000)} in all</span>
        <label>
          Zoom <input type="range" min={1} max={40} value={zoom} onInput={(event) => setZoom(Number(event.currentTarget.value))} />
        </label>
        {earlier && <button onClick={earlier}>Show earlier</button>}
      </p>
      <div class="scroll timeline" tabIndex={0} role="region" aria-label="Timeline">
        <ol style={{ width: `${zoom * 100}%` }}>
          {bars.map((bar) => (
            <li key={bar.key} class={`bar is-${bar.kind}`}>
              <span class="label" style={{ paddingLeft: `${bar.depth}rem` }}>
                <Text of={bar.label} max={60} />
              </span>
              <span class="track">
                <span
                  class="span"
                  style={{ marginLeft: part(bar.start - start), width: part(Math.max(bar.end - bar.start, span / 500)) }}
                  title={`${duration((bar.end - bar.start) / 1000)} ${bar.note}`.slice(0, 300)}
                />
              </span>
              <span class="note">
                {bar.end > bar.start ? duration((bar.end - bar.start) / 1000) : ""} <Text of={bar.note} max={80} />
              </span>
            </li>
          ))}
        </ol>
      </div>
    </>
  );
}
