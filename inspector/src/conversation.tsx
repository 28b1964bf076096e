// Messages that agents have stored in a checkpoint.

import { useState } from "preact/hooks";
import { type Dict, get } from "./api";
import { Markdown } from "./markdown";
import { Empty, Problem, Raw, Text, useLoaded } from "./ui";

interface Talk {
  agent: string;
  path: string[];
  count: number;
  messages: { role: string; author: string | null; contents: Dict[] }[];
}

export function Conversation({ at }: { at: string }) {
  const found = useLoaded<{ conversations: Talk[] }>(() => get("conversation", { checkpoint: at }), [at]);
  const [chosen, setChosen] = useState(0);
  if (found.error) return <Problem error={found.error} />;
  if (!found.value) return <p class="quiet">Loading…</p>;
  const talks = found.value.conversations;
  if (!talks.length) return <Empty>No agent has stored messages in this checkpoint.</Empty>;
  const talk = talks[Math.min(chosen, talks.length - 1)]!;
  return (
    <>
      <div class="chips" role="group" aria-label="Agents">
        {talks.map((each, place) => (
          <button class="chip" key={place} aria-pressed={each === talk} onClick={() => setChosen(place)}>
            <Text of={[...each.path, each.agent].join("/")} max={60} /> <b>{each.count}</b>
          </button>
        ))}
      </div>
      {talk.count > talk.messages.length && <p class="quiet">The last {talk.messages.length} of {talk.count} messages.</p>}
      <ol class="talk">
        {talk.messages.map((message, place) => (
          <li key={place} class={`message is-${["user", "assistant", "tool", "system"].includes(message.role) ? message.role : "other"}`}>
            <h3>
              <Text of={message.author ?? message.role ?? "unknown"} max={60} />
            </h3>
            {message.contents.map((content, part) => (
              <Content key={part} of={content} />
            ))}
          </li>
        ))}
      </ol>
    </>
  );
}

function parsed(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function Content({ of }: { of: Dict }) {
  switch (of["type"]) {
    case "text":
    case "text_reasoning":
      return <Markdown of={String(of["text"] ?? "")} />;
    case "function_call":
      return (
        <details class="call" open>
          <summary>
            calls <code><Text of={of["name"]} max={80} /></code>
          </summary>
          <Raw of={parsed(of["arguments"])} />
        </details>
      );
    case "function_result":
      return (
        <details class="call">
          <summary>
            {of["exception"] ? "failed" : "result"} <Text of={of["exception"] ?? of["result"]} max={100} />
          </summary>
          <Raw of={parsed(of["exception"] ?? of["result"])} />
        </details>
      );
    case "function_approval_request":
      return (
        <p class="approval">
          asks to call <code><Text of={of["call"]?.name} max={80} /></code> with <Text of={of["call"]?.arguments} max={400} />
        </p>
      );
    case "function_approval_response":
      return <p class="approval">{of["approved"] ? "approved" : "refused"}</p>;
    default:
      if (of["image"]) return <img src={of["image"]} alt="An image of the conversation" loading="lazy" />;
      return <Raw of={of} />;
  }
}
