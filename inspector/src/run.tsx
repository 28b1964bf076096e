// One run: its header, its tabs, and the slider over its checkpoints.

import { lazy } from "./lazy";
import { useEffect, useState } from "preact/hooks";
import { type Asked, type Checkpoint, type Dict, follow, get, type Host, post, type Run } from "./api";
import { Conversation } from "./conversation";
import { Events } from "./events";
import { AnswerForm } from "./requests";
import { go, link, route, setQuery } from "./route";
import { Tags } from "./runs";
import { State } from "./state";
import { Timeline } from "./timeline";
import { clean, Confirm, duration, Empty, Problem, Raw, Status, Text, Time, useLoaded } from "./ui";

const Graph = lazy(() => import("./graph").then((module) => module.Graph));
const TABS = ["overview", "graph", "timeline", "conversation", "state", "events"];
const AT_CHECKPOINT = new Set(["graph", "conversation", "state"]);

interface Found {
  run: Run;
  owner_is_alive: boolean;
  requests: Asked[];
}

export function RunPage({ id, tab, readOnly }: { id: string; tab: string; readOnly: boolean }) {
  const found = useLoaded<Found>(() => get("run", { run: id }), [id]);
  const [news, setNews] = useState(0);
  const newest = found.value?.run.events;
  useEffect(() => {
    if (newest === undefined) return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = follow(id, newest + 1, () => {
      // Many events may come at once: look once for all of them.
      timer ??= setTimeout(() => {
        timer = undefined;
        found.reload();
        setNews((count) => count + 1);
      }, 200);
    });
    const poll = setInterval(() => document.visibilityState === "visible" && found.reload(), 5_000);
    return () => (stop(), clearTimeout(timer), clearInterval(poll));
  }, [id, newest === undefined]);
  if (found.error && !found.value) return <Problem error={found.error} />;
  if (!found.value) return <p class="quiet">Loading…</p>;
  const { run, requests } = found.value;
  const at = route.value.query.get("at") ?? run.checkpoint_id;
  return (
    <>
      <RunHeader found={found.value} readOnly={readOnly} onDone={found.reload} />
      <Problem error={found.error} />
      <nav class="tabs" aria-label="Parts of the run">
        {TABS.map((name) => (
          <a
            key={name}
            href={link(["run", id, name], { at: AT_CHECKPOINT.has(name) ? route.value.query.get("at") : null })}
            aria-current={name === tab ? "page" : undefined}
          >
            {name[0]?.toUpperCase() + name.slice(1)}
          </a>
        ))}
      </nav>
      {AT_CHECKPOINT.has(tab) && at && <Slider run={run} at={at} readOnly={readOnly} onDone={found.reload} />}
      {tab === "overview" ? (
        <Overview run={run} requests={requests} readOnly={readOnly} onDone={found.reload} />
      ) : tab === "timeline" ? (
        <Timeline run={run} news={news} />
      ) : tab === "events" ? (
        <Events run={run} news={news} />
      ) : !AT_CHECKPOINT.has(tab) ? (
        <Empty>There is no such part of a run.</Empty>
      ) : !at ? (
        <Empty>This run has no checkpoint yet.</Empty>
      ) : tab === "graph" ? (
        <Graph run={run} at={at} news={news} />
      ) : tab === "conversation" ? (
        <Conversation at={at} />
      ) : (
        <State at={at} />
      )}
    </>
  );
}

function RunHeader({ found, readOnly, onDone }: { found: Found; readOnly: boolean; onDone: () => void }) {
  const { run } = found;
  const spent = Object.entries(run.spent).map(([name, amount]) => `${amount.toLocaleString("en")} ${name.replace(/_/g, " ")}`);
  const seconds = (new Date(run.finished_at ?? Date.now()).getTime() - new Date(run.created_at).getTime()) / 1000;
  return (
    <section class="run-head" aria-label="Run">
      <h1>
        <Text of={run.run_id} max={120} /> <Status of={run.status} />
      </h1>
      <p class="facts">
        <a href={link(["runs"], { workflow: run.workflow_name })}>
          <Text of={run.workflow_name} max={80} />
        </a>
        {run.version !== null && <span>version {run.version}</span>}
        <span>
          created <Time at={run.created_at} />
        </span>
        <span>
          {run.finished_at ? "took" : "since"} {duration(seconds)}
        </span>
        <span>{run.supersteps === 1 ? "1 superstep" : `${run.supersteps} supersteps`}</span>
        {spent.map((text) => (
          <span key={text}>{text}</span>
        ))}
        {run.owner && (
          <span>
            owner <Text of={run.owner} max={60} /> ({found.owner_is_alive ? "alive" : "dead"})
          </span>
        )}
        {run.wake_at && (
          <span>
            wakes <Time at={run.wake_at} />
          </span>
        )}
        {run.parent_run_id && (
          <span>
            fork of{" "}
            <a href={link(["run", run.parent_run_id])}>
              <Text of={run.parent_run_id} max={60} />
            </a>
          </span>
        )}
        <Tags of={run.tags} />
      </p>
      {!readOnly && <Actions run={run} onDone={onDone} />}
    </section>
  );
}

const ADVICE: Record<string, string> = {
  failed: "Fix the cause, then recover the run: it continues from its newest checkpoint.",
  quarantined: "It kept ending the processes that advanced it. Fix the cause, then recover it.",
  waiting: "It waits for the answers below.",
  sleeping: "It wakes by itself while a host serves its workflow.",
  blocked: "It could go on, but no living host can load it. It goes on by itself when one can.",
  running: "A host that serves its workflow advances it.",
  cancelled: "Its program can continue it.",
  exported: "It has moved to a file. Import the file where it should continue.",
};

function Actions({ run, onDone }: { run: Run; onDone: () => void }) {
  const [act, setAct] = useState<"cancel" | "recover" | "delete" | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [done, setDone] = useState("");
  const isHalted = run.status === "failed" || run.status === "quarantined";
  const isOver = ["idle", "cancelled", "exported"].includes(run.status);
  const perform = async (chosen: string) => {
    setError(null);
    try {
      await post(chosen, { run: run.run_id });
      if (chosen === "delete") go("#/runs");
      else setDone(`${chosen === "cancel" ? "The cancellation is stored" : "The run may continue"}: a host that serves the workflow applies it.`);
      onDone();
    } catch (reason) {
      setError(reason);
    }
  };
  return (
    <>
      <div class="actions">
        {isHalted && <button onClick={() => void perform("recover")}>Recover</button>}
        {!isOver && !isHalted && <button onClick={() => setAct("cancel")}>Cancel</button>}
        <button class="danger" onClick={() => setAct("delete")}>
          Delete
        </button>
        <a href={link(["compare"], { kind: "runs", before: run.parent_run_id ?? run.run_id, after: run.run_id })}>Compare</a>
      </div>
      {done && <p role="status">{done}</p>}
      <Problem error={error} />
      {act && (
        <Confirm
          title={act === "delete" ? "Delete this run for good?" : "Cancel this run?"}
          action={act === "delete" ? "Delete" : "Cancel the run"}
          onDone={(isSure) => {
            setAct(null);
            if (isSure) void perform(act);
          }}
        >
          <p>
            <Text of={run.run_id} /> is {run.status}.{" "}
            {act === "delete" ? "Its checkpoints, events and requests are removed." : "It ends in a checkpoint from which it can continue."}
          </p>
        </Confirm>
      )}
    </>
  );
}

function Overview(props: { run: Run; requests: Asked[]; readOnly: boolean; onDone: () => void }) {
  const { run, requests } = props;
  const forks = useLoaded<{ runs: Run[] }>(() => get("forks", { run: run.run_id }), [run.run_id]);
  const [size, setSize] = useState<Dict | null>(null);
  return (
    <>
      <p>{ADVICE[run.status] ?? "It has no work left. A message starts its next turn."}</p>
      <Hosts run={run} />
      {run.failure ? <Failure of={run.failure} attempts={run.attempts} /> : run.error && <Problem error={run.error} />}
      {requests.map((request) => (
        <section class="card" key={request.request_id}>
          <AnswerForm request={request} readOnly={props.readOnly} onDone={props.onDone} />
        </section>
      ))}
      {(forks.value?.runs.length ?? 0) > 0 && (
        <section>
          <h2>Forks</h2>
          <ul>
            {forks.value!.runs.map((fork) => (
              <li key={fork.run_id}>
                <a href={link(["run", fork.run_id])}>
                  <Text of={fork.run_id} max={80} />
                </a>{" "}
                <Status of={fork.status} /> from <Text of={fork.parent_checkpoint_id} max={80} />{" "}
                <a href={link(["compare"], { kind: "runs", before: run.run_id, after: fork.run_id })}>compare</a>
              </li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h2>Size</h2>
        {size ? (
          <Raw of={size} />
        ) : (
          <button onClick={() => void get("size", { run: run.run_id }).then((found) => setSize(found.size))}>Measure the stored size</button>
        )}
      </section>
    </>
  );
}

// Frames of the engine say nothing about the program's error.
const ENGINE = /^ {2}File "[^"\n]*[/\\]perdure[/\\](?:agents|engine|functional|graph|hosting|workflows)[/\\][^\n]*\n(?: {4}[^\n]*\n)*/gm;

/** Say which living hosts serve the workflow, and why they could not load the run. */
function Hosts({ run }: { run: Run }) {
  const found = useLoaded<{ hosts: Host[] }>(() => get("hosts"), [run.run_id], 5_000);
  const serving = (found.value?.hosts ?? []).filter((host) => run.workflow_name in host.workflows);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <></>;
  return (
    <>
      <p class="quiet">
        {serving.length ? (
          <>
            Living hosts that serve <Text of={run.workflow_name} max={80} />:{" "}
            {serving.map((host) => `process ${host.process} on ${clean(host.machine, 60)} (version ${host.workflows[run.workflow_name]})`).join(", ")}
          </>
        ) : (
          <>
            No living host serves <Text of={run.workflow_name} max={80} />. What is stored here waits until one does.
          </>
        )}
      </p>
      {Object.entries(run.blocked ?? {}).map(([host, reason]) => (
        <Problem key={host} error={`${host}: ${reason}`} />
      ))}
    </>
  );
}

function Failure({ of, attempts }: { of: Dict; attempts: number }) {
  const [isWhole, setWhole] = useState(false);
  const traceback = String(of["traceback"] ?? "");
  const place = [...(of["path"] ?? []), of["executor_id"] ?? "the engine"].join(" / ");
  return (
    <section class="failure" aria-label="Failure">
      <h2>
        <Text of={`${of["error_type"]}: ${of["message"]}`} max={1000} />
      </h2>
      <p class="facts">
        <span>
          in <Text of={place} />
        </span>
        {of["step"] && (
          <span>
            step <Text of={of["step"]} />
          </span>
        )}
        <span>attempt {of["attempt"] ?? attempts}</span>
        <Time at={of["at"]} />
      </p>
      <pre class="raw" tabIndex={0}>
        <Text of={isWhole ? traceback : traceback.replace(ENGINE, "")} max={50_000} />
      </pre>
      <button onClick={() => setWhole(!isWhole)}>{isWhole ? "Hide the frames of the engine" : "Show all frames"}</button>
    </section>
  );
}

function Slider({ run, at, readOnly, onDone }: { run: Run; at: string; readOnly: boolean; onDone: () => void }) {
  const found = useLoaded<{ checkpoints: Checkpoint[] }>(() => get("checkpoints", { run: run.run_id }), [run.run_id, run.checkpoint_id]);
  const [asks, setAsks] = useState<"restore" | "fork" | null>(null);
  const [error, setError] = useState<unknown>(null);
  const all = found.value?.checkpoints ?? [];
  const place = all.findIndex((each) => each.checkpoint_id === at);
  const choose = (to: number) => {
    const chosen = all[to];
    if (chosen) setQuery({ at: chosen.checkpoint_id === run.checkpoint_id ? null : chosen.checkpoint_id });
  };
  const act = async (what: "restore" | "fork") => {
    setError(null);
    try {
      const found = await post(what, { run: run.run_id, checkpoint: at });
      if (what === "fork") return go(link(["run", found.forked]));
      setQuery({ at: null });
      onDone();
    } catch (reason) {
      setError(reason);
    }
  };
  const here = all[place];
  if (found.error) return <Problem error={found.error} />;
  if (!here) return <p class="quiet">Loading…</p>;
  return (
    <div class="slider">
      <button data-earlier aria-label="Earlier checkpoint" disabled={place <= 0} onClick={() => choose(place - 1)}>
        ‹
      </button>
      <input
        type="range"
        aria-label="Checkpoint"
        aria-valuetext={`${at}, superstep ${here.superstep}`}
        min={0}
        max={all.length - 1}
        value={place}
        onInput={(event) => choose(Number(event.currentTarget.value))}
      />
      <button data-later aria-label="Later checkpoint" disabled={place >= all.length - 1} onClick={() => choose(place + 1)}>
        ›
      </button>
      <span class="facts">
        <Text of={at} max={80} />
        <span>superstep {here.superstep}</span>
        <Time at={here.at} />
        {here.previous_checkpoint_id && (
          <a href={link(["compare"], { kind: "checkpoints", before: here.previous_checkpoint_id, after: at })}>what changed</a>
        )}
        {!readOnly && <button onClick={() => setAsks("fork")}>Fork…</button>}
        {!readOnly && at !== run.checkpoint_id && <button onClick={() => setAsks("restore")}>Restore…</button>}
      </span>
      <Problem error={error} />
      {asks === "fork" && (
        <Confirm
          title="Start a new run at this checkpoint?"
          action="Fork"
          onDone={(yes) => {
            setAsks(null);
            if (yes) void act("fork");
          }}
        >
          <p>
            A new run begins at <Text of={at} /> (superstep {here.superstep}). <Text of={run.run_id} /> stays as it is. A host that serves
            the workflow advances the new run.
          </p>
        </Confirm>
      )}
      {asks === "restore" && (
        <Confirm
          title="Move the run back to this checkpoint?"
          action="Restore"
          onDone={(yes) => {
            setAsks(null);
            if (yes) void act("restore");
          }}
        >
          <p>
            <Text of={run.run_id} /> goes back from <Text of={run.checkpoint_id} /> to <Text of={at} /> (superstep {here.superstep}). Later
            checkpoints stay readable. A host that serves its workflow continues it from there.
          </p>
        </Confirm>
      )}
    </div>
  );
}
