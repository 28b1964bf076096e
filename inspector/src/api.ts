// The JSON API. Addresses are relative to the page, so it works behind any prefix.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Dict = { [key: string]: any };

export interface Run {
  run_id: string;
  workflow_name: string;
  status: string;
  error: string | null;
  owner: string | null;
  attempts: number;
  wake_at: string | null;
  created_at: string;
  updated_at: string | null;
  finished_at: string | null;
  checkpoint_id: string | null;
  parent_checkpoint_id: string | null;
  parent_run_id: string | null;
  events: number;
  version: number | null;
  supersteps: number;
  open_requests: number | null;
  spent: { [name: string]: number };
  tags: { [name: string]: string };
  failure: Dict | null;
  blocked?: { [host: string]: string } | null;
}

export interface Host {
  host_id: string;
  process: number;
  machine: string;
  workflows: { [name: string]: number };
}

export interface Asked {
  run_id: string;
  workflow_name: string;
  request_id: string;
  executor_id: string;
  data: any;
  request_type: string;
  response_type: string;
  schema: Dict | null;
  opened_at: string | null;
  deadline: string | null;
  approves: string | null;
  answered_by: string | null;
}

export interface RunEvent {
  seq: number;
  at: string | null;
  superstep: number | null;
  type: string;
  executor_id: string | null;
  path: string[];
  state: string | null;
  data: any;
  details: any;
  request_id?: string;
}

export interface Checkpoint {
  checkpoint_id: string;
  superstep: number;
  at: string;
  previous_checkpoint_id: string | null;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    message: string,
  ) {
    super(message);
  }
}

const STORED = "perdure-token";

/** Take the token out of the address, so that it is neither bookmarked nor sent anywhere. */
export function takeToken(): void {
  const given = /^#token=([^&]+)/.exec(location.hash);
  if (given?.[1]) {
    sessionStorage.setItem(STORED, decodeURIComponent(given[1]));
    history.replaceState(null, "", location.pathname + location.search + "#/runs");
  }
}

function headers(more: Record<string, string> = {}): Record<string, string> {
  const token = sessionStorage.getItem(STORED);
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

type Params = Record<string, string | number | string[] | null | undefined>;

function address(name: string, params: Params): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") search.append(key, String(each));
    }
  }
  const query = search.toString();
  return `api/v1/${name}${query ? `?${query}` : ""}`;
}

async function read(response: Response): Promise<any> {
  let body: any = null;
  try {
    body = await response.json();
  } catch {
    throw new ApiError(response.status, "Unreadable", `the server answered ${response.status} without JSON`);
  }
  if (!response.ok) throw new ApiError(response.status, body?.error?.type ?? "Error", body?.error?.message ?? "failed");
  return body;
}

async function send(url: string, init: RequestInit): Promise<any> {
  let response: Response;
  try {
    response = await fetch(url, init);
  } catch {
    throw new ApiError(0, "Unreachable", "the inspector's server can't be reached; is it still running?");
  }
  return read(response);
}

export function get(name: string, params: Params = {}, signal?: AbortSignal): Promise<any> {
  return send(address(name, params), { headers: headers(), ...(signal ? { signal } : {}) });
}

export function post(name: string, body: Dict): Promise<any> {
  return send(`api/v1/${name}`, {
    method: "POST",
    headers: headers({ "content-type": "application/json" }),
    body: JSON.stringify(body),
  });
}

/** Follow the committed events of a run. Reconnects behind the last event that came. Returns how to stop. */
export function follow(run: string, from: number, onEvent: (event: RunEvent) => void): () => void {
  const stop = new AbortController();
  let next = from;
  const read = async () => {
    while (!stop.signal.aborted) {
      try {
        const response = await fetch(address("events", { run, from: next }), {
          headers: headers({ accept: "text/event-stream" }),
          signal: stop.signal,
        });
        if (!response.ok || !response.body) throw new Error(String(response.status));
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          const blocks = (rest + value).split("\n\n");
          rest = blocks.pop() ?? "";
          for (const block of blocks) {
            const line = block.split("\n").find((each) => each.startsWith("data: "));
            if (!line) continue;
            const event: RunEvent = JSON.parse(line.slice(6));
            next = event.seq + 1;
            onEvent(event);
          }
        }
      } catch {
        if (stop.signal.aborted) return;
      }
      await new Promise((resume) => setTimeout(resume, 1000));
    }
  };
  void read();
  return () => stop.abort();
}
