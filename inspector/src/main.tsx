import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, takeToken } from "./api";
import { Compare } from "./compare";
import { Requests } from "./requests";
import { refresh, route } from "./route";
import { RunPage } from "./run";
import { Runs } from "./runs";
import "./style.css";
import { Empty, Problem, Text, useLoaded } from "./ui";

const THEME = "perdure-theme";

export interface Info {
  store: string;
  tenant: string | null;
  read_only: boolean;
}

function useTheme(): [string, () => void] {
  const [theme, setTheme] = useState(() => localStorage.getItem(THEME) ?? "auto");
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
    localStorage.setItem(THEME, theme);
  }, [theme]);
  return [theme, () => setTheme(theme === "auto" ? "dark" : theme === "dark" ? "light" : "auto")];
}

function Help({ onClose }: { onClose: () => void }) {
  const keys = [
    ["/", "go to the filter or search field"],
    ["j, k", "next and previous row"],
    ["Enter", "open the row"],
    ["g r, g q, g c", "go to runs, requests, compare"],
    ["[, ]", "previous and next checkpoint of a run"],
    ["?", "show these keys"],
    ["Esc", "close"],
  ];
  return (
    <dialog open aria-labelledby="help-title" class="help">
      <h2 id="help-title">Keys</h2>
      <dl>
        {keys.map(([key, text]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <button onClick={onClose}>Close</button>
    </dialog>
  );
}

function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  return ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName) || target.isContentEditable;
}

/** Move the focus along the rows of the page. */
function moveRow(step: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  next?.querySelector<HTMLElement>("a, button")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function useKeys(toggleHelp: (shown?: boolean) => void): void {
  useEffect(() => {
    let before = "";
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape") toggleHelp(false);
      if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      const pressed = before + event.key;
      before = event.key === "g" ? "g " : "";
      const pages: Record<string, string> = { "g r": "#/runs", "g q": "#/requests", "g c": "#/compare" };
      if (pages[pressed]) location.hash = pages[pressed];
      else if (event.key === "?") toggleHelp();
      else if (event.key === "j") moveRow(1);
      else if (event.key === "k") moveRow(-1);
      else if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLElement>("[data-search]")?.focus();
      } else if (event.key === "[" || event.key === "]") {
        document.querySelector<HTMLElement>(event.key === "[" ? "[data-earlier]" : "[data-later]")?.click();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function Page() {
  const [theme, nextTheme] = useTheme();
  const [helps, setHelps] = useState(false);
  useKeys((shown) => setHelps((now) => shown ?? !now));
  const info = useLoaded<Info>(() => get("info"), []);
  const [name = "runs", id = "", tab = "overview"] = route.value.parts;
  useEffect(() => {
    document.title = `${name === "run" ? id : name} · perdure`;
  }, [name, id]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <strong class="brand">perdure</strong>
        <nav aria-label="Pages">
          {["runs", "requests", "compare"].map((page) => (
            <a href={`#/${page}`} aria-current={name === page ? "page" : undefined} key={page}>
              {page[0]?.toUpperCase() + page.slice(1)}
            </a>
          ))}
        </nav>
        <span class="store">
          <Text of={info.value?.store ?? ""} max={120} />
          {info.value?.read_only && <em> read-only</em>}
        </span>
        <button onClick={nextTheme} aria-label={`Theme: ${theme}`} title={`Theme: ${theme}`}>
          {theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}
        </button>
        <button onClick={() => setHelps(!helps)} aria-label="Show the keys">
          ?
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {info.error ? (
          <Problem error={info.error} />
        ) : info.value === null ? (
          <p class="quiet">Loading…</p>
        ) : name === "runs" ? (
          <Runs readOnly={info.value.read_only} />
        ) : name === "run" ? (
          <RunPage key={id} id={id} tab={tab} readOnly={info.value.read_only} />
        ) : name === "requests" ? (
          <Requests readOnly={info.value.read_only} />
        ) : name === "compare" ? (
          <Compare />
        ) : (
          <Empty>
            <h1>Not found</h1>There is no such page. <a href="#/runs">Go to the runs</a>.
          </Empty>
        )}
      </main>
      {helps && <Help onClose={() => setHelps(false)} />}
    </>
  );
}

takeToken();
refresh();
render(<Page />, document.getElementById("page")!);
