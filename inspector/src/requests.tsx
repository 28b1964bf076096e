// One inbox for the open requests of all runs, and the form that answers one.

import { useState } from "preact/hooks";
import { type Asked, get, post } from "./api";
import { initial, JsonField, SchemaField } from "./form";
import { link } from "./route";
import { ago, Empty, Problem, Raw, Text, Time, useLoaded } from "./ui";

const NAME = "perdure-name";

export function Requests({ readOnly }: { readOnly: boolean }) {
  const found = useLoaded<{ requests: Asked[]; is_cut: boolean }>(() => get("requests", { limit: 200 }), [], 3_000);
  const [open, setOpen] = useState<string | null>(null);
  const all = found.value?.requests ?? [];
  return (
    <>
      <h1>Requests</h1>
      <Problem error={found.error} />
      {found.value && !all.length && <Empty>Nobody waits for an answer. Requests of all runs appear here.</Empty>}
      <ul class="inbox">
        {all.map((request) => {
          const key = `${request.run_id} ${request.request_id}`;
          return (
            <li key={key} data-row class="card">
              <button class="row" aria-expanded={open === key} onClick={() => setOpen(open === key ? null : key)}>
                <b>
                  <Text of={request.request_id} max={80} />
                </b>
                <span>
                  <Text of={request.executor_id} max={40} /> of <Text of={request.workflow_name} max={40} />
                </span>
                <span>{ago(request.opened_at)} ago</span>
                {request.answered_by && <em>answered</em>}
                <span class="cut">
                  <Text of={request.data} max={160} />
                </span>
              </button>
              {open === key && <AnswerForm request={request} readOnly={readOnly} onDone={found.reload} />}
            </li>
          );
        })}
      </ul>
      {found.value?.is_cut && <p class="quiet">Only the oldest 200 are shown.</p>}
    </>
  );
}

export function AnswerForm({ request, readOnly, onDone }: { request: Asked; readOnly: boolean; onDone: () => void }) {
  const schema = request.schema ?? {};
  const [value, setValue] = useState<any>(() => initial(schema, schema));
  const [isRaw, setRaw] = useState(request.schema === null);
  const [name, setName] = useState(() => localStorage.getItem(NAME) ?? "");
  const [error, setError] = useState<unknown>(null);
  const [isSent, setSent] = useState(false);
  const answer = async (event: Event) => {
    event.preventDefault();
    setError(null);
    localStorage.setItem(NAME, name);
    try {
      await post("answer", { run: request.run_id, request: request.request_id, answer: value, by: name, approves: request.approves });
      setSent(true);
      onDone();
    } catch (reason) {
      setError(reason);
    }
  };
  return (
    <div class="answer">
      <p class="facts">
        <b>
          <Text of={request.request_id} max={80} />
        </b>
        <span>
          asked by <Text of={request.executor_id} max={60} /> of{" "}
          <a href={link(["run", request.run_id])}>
            <Text of={request.run_id} max={60} />
          </a>
        </span>
        <Time at={request.opened_at} />
        {request.deadline && (
          <span>
            until <Time at={request.deadline} />
          </span>
        )}
        {request.approves && (
          <span>
            approves <code><Text of={request.approves} max={80} /></code>
          </span>
        )}
      </p>
      <Raw of={request.data} />
      {request.answered_by ? (
        <p role="status">
          Answered by <Text of={request.answered_by} max={80} />. A host that serves the workflow applies it.
        </p>
      ) : isSent ? (
        <p role="status">Your answer is stored. A host that serves the workflow applies it.</p>
      ) : readOnly ? (
        <p class="quiet">This inspector is read-only.</p>
      ) : (
        <form onSubmit={(event) => void answer(event)}>
          {isRaw ? (
            <JsonField label="Answer" value={value} onChange={setValue} />
          ) : (
            <SchemaField schema={schema} root={schema} value={value} label={`Answer: ${request.response_type}`} onChange={setValue} />
          )}
          <label class="field">
            <span>Your name, for the record</span>
            <input value={name} onInput={(event) => setName(event.currentTarget.value)} />
          </label>
          <p class="actions">
            <button type="submit" class="primary">
              Answer
            </button>
            {request.schema && (
              <button type="button" onClick={() => setRaw(!isRaw)}>
                {isRaw ? "As a form" : "As JSON"}
              </button>
            )}
          </p>
        </form>
      )}
      <Problem error={error} />
    </div>
  );
}
