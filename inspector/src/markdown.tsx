// A small subset of Markdown as elements. It makes no HTML from text: what it does not know stays text.

import type { ComponentChildren } from "preact";
import { clean } from "./ui";

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\n]+\*)/;

function inline(text: string): ComponentChildren[] {
  return text.split(INLINE).map((part, at) => {
    if (at % 2 === 0) return clean(part, 100_000);
    if (part.startsWith("`")) return <code key={at}>{clean(part.slice(1, -1))}</code>;
    if (part.startsWith("**")) return <strong key={at}>{clean(part.slice(2, -2))}</strong>;
    return <em key={at}>{clean(part.slice(1, -1))}</em>;
  });
}

export function Markdown({ of }: { of: string }) {
  const blocks: ComponentChildren[] = [];
  const lines = of.slice(0, 100_000).split("\n");
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at]!;
    if (line.startsWith("```")) {
      const end = lines.findIndex((each, place) => place > at && each.startsWith("```"));
      const stop = end < 0 ? lines.length : end;
      blocks.push(
        <pre class="raw" tabIndex={0} key={at}>
          <bdi>{clean(lines.slice(at + 1, stop).join("\n"), 100_000)}</bdi>
        </pre>,
      );
      at = stop;
    } else if (/^#{1,6} /.test(line)) {
      blocks.push(
        <p class="heading" key={at}>
          <bdi>{inline(line.replace(/^#+ /, ""))}</bdi>
        </p>,
      );
    } else if (/^\s*([-*]|\d+\.) /.test(line)) {
      const items: ComponentChildren[] = [];
      const first = at;
      while (at < lines.length && /^\s*([-*]|\d+\.) /.test(lines[at]!)) {
        items.push(
          <li key={at}>
            <bdi>{inline(lines[at]!.replace(/^\s*([-*]|\d+\.) /, ""))}</bdi>
          </li>,
        );
        at++;
      }
      at--;
      blocks.push(<ul key={first}>{items}</ul>);
    } else if (line.trim()) {
      const first = at;
      while (at + 1 < lines.length && lines[at + 1]!.trim() && !/^(#{1,6} |```|\s*([-*]|\d+\.) )/.test(lines[at + 1]!)) at++;
      blocks.push(
        <p key={first}>
          <bdi>{inline(lines.slice(first, at + 1).join(" "))}</bdi>
        </p>,
      );
    }
  }
  return <>{blocks}</>;
}
