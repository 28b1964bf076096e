// The workflow drawn from its stored signature, with the position of the run.

import { graphlib, layout } from "@dagrejs/dagre";
import { useMemo, useState } from "preact/hooks";
import { type Dict, get, type Run, type RunEvent } from "./api";
import { go, link } from "./route";
import { clean, Empty, Problem, Text, useLoaded } from "./ui";

interface Visits {
  count: Record<string, number>;
  failed: Set<string>;
}

const WIDTH = 170;
const HEIGHT = 52;

export function Graph({ run, at, news }: { run: Run; at: string; news: number }) {
  const found = useLoaded<Dict>(() => get("graph", { checkpoint: at }), [at]);
  const events = useLoaded<{ events: RunEvent[] }>(() => get("events", { run: run.run_id, limit: 500, from: Math.max(1, run.events - 499) }), [run.run_id, news]);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <p class="quiet">Loading…</p>;
  const isHead = at === run.checkpoint_id;
  const failedIn = isHead && run.failure ? [...(run.failure["path"] ?? []), run.failure["executor_id"]].join("/") : null;
  return (
    <Level
      graph={found.value["graph"]}
      position={found.value["position"]}
      path={[]}
      visits={visitsOf(events.value?.events ?? [], failedIn)}
      isRunning={isHead && run.status === "running"}
      run={run}
    />
  );
}

function visitsOf(events: RunEvent[], failedIn: string | null): Visits {
  const count: Record<string, number> = {};
  for (const event of events) {
    if (event.type !== "executor_completed" && event.type !== "executor_bypassed") continue;
    const key = [...event.path, event.executor_id].join("/");
    count[key] = (count[key] ?? 0) + 1;
  }
  return { count, failed: new Set(failedIn ? [failedIn] : []) };
}

interface LevelProps {
  graph: Dict;
  position: Dict;
  path: string[];
  visits: Visits;
  isRunning: boolean;
  run: Run;
}

function Level({ graph, position, path, visits, isRunning, run }: LevelProps) {
  const [open, setOpen] = useState<string | null>(null);
  const drawn = useMemo(() => draw(graph), [graph]);
  if (!drawn.nodes.length) return <Empty>The checkpoint holds no graph. A program made it by hand.</Empty>;
  const stateOf = (name: string): string => {
    const key = [...path, name].join("/");
    if (visits.failed.has(key)) return "failed";
    if ((position["waiting"] ?? []).includes(name)) return "waiting";
    if ((position["suspended"] ?? []).includes(name)) return "sleeping";
    if ((position["messages"] ?? []).some((each: Dict) => each["target"] === name)) return isRunning ? "running" : "next";
    return visits.count[key] || (position["outputs"] ?? []).includes(name) ? "done" : "idle";
  };
  const inner = open ? graph["executors"][open] : null;
  return (
    <figure class="graph">
      <div class="scroll" tabIndex={0} role="region" aria-label="Graph">
        <svg width={drawn.width} height={drawn.height} viewBox={`0 0 ${drawn.width} ${drawn.height}`} role="group" aria-label="Workflow">
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
              <path d="M0 0 L8 4 L0 8 z" />
            </marker>
          </defs>
          {drawn.edges.map((edge) => (
            <g key={edge.key} class="edge">
              <path d={edge.path} marker-end="url(#arrow)" />
              {edge.label && (
                <text x={edge.x} y={edge.y}>
                  {clean(edge.label, 24)}
                </text>
              )}
            </g>
          ))}
          {drawn.nodes.map((node) => {
            const state = stateOf(node.name);
            const count = visits.count[[...path, node.name].join("/")] ?? 0;
            const isInner = typeof graph["executors"][node.name] === "object";
            const activate = () => (isInner ? setOpen(open === node.name ? null : node.name) : go(link(["run", run.run_id, "events"], { executor: node.name })));
            return (
              <g
                key={node.name}
                class={`node is-${state}`}
                transform={`translate(${node.x - WIDTH / 2} ${node.y - HEIGHT / 2})`}
                role="button"
                tabIndex={0}
                aria-label={`${node.name}: ${state}, finished ${count} times`}
                onClick={activate}
                onKeyDown={(event) => event.key === "Enter" && activate()}
              >
                <rect width={WIDTH} height={HEIGHT} rx="8" />
                <text x={WIDTH / 2} y="22" class="name">
                  {clean(node.name, 20)}
                </text>
                <text x={WIDTH / 2} y="40" class="note">
                  {state === "idle" ? "" : state}
                  {count ? ` · ${count}×` : ""}
                  {isInner ? (open === node.name ? " · close" : " · open") : ""}
                </text>
              </g>
            );
          })}
        </svg>
      </div>
      <figcaption class="quiet">Start: <Text of={graph["start_executor"]} /></figcaption>
      {open && inner && (
        <section class="inner">
          <h2>
            Inside <Text of={open} />
          </h2>
          <Level
            graph={inner["sub_workflow"] ?? {}}
            position={position["sub_workflows"]?.[open] ?? {}}
            path={[...path, open]}
            visits={visits}
            isRunning={isRunning}
            run={run}
          />
        </section>
      )}
    </figure>
  );
}

interface Drawn {
  width: number;
  height: number;
  nodes: { name: string; x: number; y: number }[];
  edges: { key: string; path: string; label: string; x: number; y: number }[];
}

function draw(graph: Dict): Drawn {
  const names = Object.keys(graph["executors"] ?? {});
  const drawing = new graphlib.Graph({ multigraph: true });
  drawing.setGraph({ rankdir: "TB", nodesep: 36, ranksep: 44, marginx: 16, marginy: 16 });
  drawing.setDefaultEdgeLabel(() => ({}));
  for (const name of names) drawing.setNode(name, { width: WIDTH, height: HEIGHT });
  for (const group of graph["edge_groups"] ?? []) {
    if (group.group_type === "InternalEdgeGroup") continue;
    for (const edge of group.edges) {
      if (!names.includes(edge.source) || !names.includes(edge.target)) continue;
      drawing.setEdge(edge.source, edge.target, { text: edge.condition ?? "" }, `${group.group_type}${edge.condition ?? ""}`);
    }
  }
  layout(drawing);
  const size = drawing.graph() as Dict;
  return {
    width: size["width"] ?? 0,
    height: size["height"] ?? 0,
    nodes: names.map((name) => ({ name, ...(drawing.node(name) as Dict) }) as Drawn["nodes"][number]),
    edges: drawing.edges().map((key: any) => {
      const edge = drawing.edge(key) as Dict;
      const points: { x: number; y: number }[] = edge["points"];
      const middle = points[Math.floor(points.length / 2)]!;
      const path = points.map((point, at) => `${at ? "L" : "M"}${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join(" ");
      return { key: `${key.v}→${key.w} ${key.name}`, path, label: edge["text"], x: middle.x, y: middle.y - 4 };
    }),
  };
}
