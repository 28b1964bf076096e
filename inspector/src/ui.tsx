// Small parts that all pages share.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const TEXT_MAX = 5_000;

/** Return stored text with control and bidirectional characters escaped, and cut. */
export function clean(value: unknown, max = TEXT_MAX): string {
  const text = typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
  const cut = text.length > max ? `${text.slice(0, max)}… (${(text.length - max).toLocaleString("en")} more characters)` : text;
  return cut.replace(HIDDEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Stored text. It can't reverse or move what stands beside it. */
export function Text({ of, max, class: name }: { of: unknown; max?: number; class?: string }) {
  return <bdi class={name}>{clean(of, max)}</bdi>;
}

export function Status({ of }: { of: string }) {
  return <span class={`status is-${of.replace(/[^a-z]/g, "")}`}>{clean(of, 30)}</span>;
}

export function when(text: string | null | undefined): string {
  if (!text) return "";
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? clean(text, 40) : `${at.toISOString().slice(0, 19).replace("T", " ")}Z`;
}

export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <></>;
  return (
    <time dateTime={at} title={at}>
      {when(at)}
    </time>
  );
}

export function ago(text: string | null | undefined): string {
  if (!text) return "";
  const seconds = Math.max(0, (Date.now() - new Date(text).getTime()) / 1000);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]] as const) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function Problem({ error }: { error: unknown }) {
  if (!error) return <></>;
  const text = error instanceof Error ? error.message : String(error);
  const title = error instanceof ApiError && error.status === 409 ? "Not done" : "Error";
  return (
    <div class="problem" role="alert">
      <strong>{title}:</strong> <Text of={text} />
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export interface Loaded<T> {
  value: T | null;
  error: unknown;
  reload: () => void;
}

/** Load something, again when `keys` change, and every few seconds if `every` is given and the page is seen. */
export function useLoaded<T>(load: () => Promise<T>, keys: unknown[], every?: number): Loaded<T> {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<unknown>(null);
  const newest = useRef(0);
  const reload = () => {
    const mine = ++newest.current;
    load().then(
      (found) => {
        if (mine !== newest.current) return;
        setValue(found);
        setError(null);
      },
      (reason) => mine === newest.current && setError(reason),
    );
  };
  useEffect(() => {
    setValue(null);
    setError(null);
    reload();
    if (!every) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && reload(), every);
    return () => clearInterval(timer);
  }, keys);
  return { value, error, reload };
}

/** Ask before something is done. The dialog is the browser's own element, so the keyboard and focus work. */
export function Confirm(props: {
  title: string;
  action: string;
  onDone: (isSure: boolean) => void;
  children?: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby="confirm-title" onClose={() => props.onDone(dialog.current?.returnValue === "yes")}>
      <form method="dialog">
        <h2 id="confirm-title">{props.title}</h2>
        <div>{props.children}</div>
        <p class="actions">
          <button value="no">Keep as it is</button>
          <button value="yes" class="danger">
            {props.action}
          </button>
        </p>
      </form>
    </dialog>
  );
}

export function Field({ label, children }: { label: string; children: JSX.Element }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

/** Data as indented JSON. */
export function Raw({ of, max = 20_000 }: { of: unknown; max?: number }) {
  return (
    <pre class="raw" tabIndex={0}>
      <bdi>{clean(JSON.stringify(of, null, 2) ?? "", max)}</bdi>
    </pre>
  );
}
